"""A trained draft on a few prompts: how often its tokens are accepted, and how much faster it decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from slimtier.advise.decoded import Round, decode
from slimtier.engine import Engine
from slimtier.errors import InputError

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.loading import Loaded


@dataclass(frozen=True, slots=True)
class Tried:
    """acceptances: how often the first, second, … token of a draft was accepted if those before it were (as far as
    one was ever looked at); mean_acceptance_length: 1 + accepted / drafts, at num_speculative_tokens. speed_up: tokens
    per second ÷ those of plain decoding, None where no answer was longer than one block."""

    acceptances: tuple[float, ...]
    mean_acceptance_length: float
    speed_up: float | None


def try_draft(
    loaded: Loaded,
    drafter: Drafter,
    prompts: Sequence[Any],
    *,
    num_speculative_tokens: int,
    longest: int,
    max_new_tokens: int,
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Tried:
    """Answer the prompts (texts, messages or ids) at temperature 0: once with drafts of `longest` tokens to see how far
    they are accepted, then `repeats` times plain and with num_speculative_tokens in turn, to take the time. `progress`
    is called 1 + `repeats` times a prompt.

    Raises InputError when nothing is drafted.
    """
    target, tokenizer = loaded.target, loaded.tokenizer
    plain, drafting, deep = (
        Engine(target, one, tokenizer=tokenizer, num_speculative_tokens=length)
        for one, length in ((None, 0), (drafter, num_speculative_tokens), (drafter, longest))
    )
    asked = [_as_asked(prompt, tokenizer) for prompt in prompts]
    rounds: list[Round] = []
    for prompt in asked:
        rounds += decode(deep, prompt, max_new_tokens).rounds
        progress()
    accepted = [one.accepted for one in rounds if one.known == longest]
    if not accepted:
        raise InputError(f"no draft of {longest} tokens was made: give a larger max_new_tokens")
    race = _Race(plain, drafting)
    for repeat in range(repeats):
        for prompt in asked:
            race.run(prompt, max_new_tokens, plain_first=bool(repeat % 2))
            progress()
        race.end_lap()
    return Tried(conditional(accepted, longest), race.mean_acceptance_length, race.speed_up)


class _Race:
    """The same answers written plainly and with a draft, in turn."""

    def __init__(self, plain: Engine, drafting: Engine) -> None:
        self._plain, self._drafting = plain, drafting
        self._seconds = [0.0, 0.0]  # of this lap, at decoding speed
        self._ratios: list[float] = []
        self._drafts = self._accepted = 0

    def run(self, prompt: Any, max_new_tokens: int, *, plain_first: bool) -> None:
        engines = (self._plain, self._drafting)
        order = engines if plain_first else engines[::-1]
        answers = {engine: engine.generate(prompt, max_new_tokens=max_new_tokens) for engine in order}
        stats = [answers[engine].stats for engine in engines]  # type: ignore[union-attr]
        rates = [one.tokens_per_s for one in stats]
        self._drafts += stats[1].num_drafts
        self._accepted += stats[1].num_accepted_tokens
        if None not in rates:  # an answer of one block has no speed
            spent = [one.num_output_tokens / rate for one, rate in zip(stats, rates, strict=True) if rate]
            self._seconds = [sum(pair) for pair in zip(self._seconds, spent, strict=True)]

    def end_lap(self) -> None:
        plain, drafting = self._seconds
        if drafting > 0.0:
            self._ratios.append(plain / drafting)
        self._seconds = [0.0, 0.0]

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self._accepted / self._drafts if self._drafts else 1.0

    @property
    def speed_up(self) -> float | None:
        return median(self._ratios) if self._ratios else None


def conditional(accepted: Sequence[int], depth: int) -> tuple[float, ...]:
    """From the accepted lengths of drafts of `depth`: how often each token was accepted if those before it were.

    Example: 0, 1, 3, 3 at depth 3: 3/4, 2/3, 2/2.
    """
    reached = [sum(length >= place for length in accepted) for place in range(depth + 1)]
    return tuple(reached[place + 1] / reached[place] for place in range(depth) if reached[place])


def _as_asked(prompt: Any, tokenizer: Any) -> Any:
    """A text is a user's message where the model has a chat template."""
    if isinstance(prompt, str) and tokenizer is not None and tokenizer.has_chat_template:
        return [{"role": "user", "content": prompt}]
    return prompt
