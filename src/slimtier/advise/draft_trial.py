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


class DraftTrial:
    """Answers the prompts (texts, messages or ids) at temperature 0: once with drafts of `longest` tokens to see how
    far they are accepted (`look`), then plain and with num_speculative_tokens to take the time, one prompt at each
    `turn`, so that others can have turns between."""

    def __init__(
        self,
        loaded: Loaded,
        drafter: Drafter,
        prompts: Sequence[Any],
        *,
        num_speculative_tokens: int,
        longest: int,
        max_new_tokens: int,
    ) -> None:
        target, tokenizer = loaded.target, loaded.tokenizer
        self._plain, self._drafting, self._deep = (
            Engine(target, one, tokenizer=tokenizer, num_speculative_tokens=length)
            for one, length in ((None, 0), (drafter, num_speculative_tokens), (drafter, longest))
        )
        self._prompts = [_as_asked(prompt, tokenizer) for prompt in prompts]
        self._longest, self._max_new_tokens = longest, max_new_tokens
        self._acceptances: tuple[float, ...] = ()
        self._seconds: dict[int, list[tuple[float, float]]] = {}  # by prompt, at decoding speed: plain, drafting
        self._drafts = self._accepted = self._turns = 0

    def look(self, progress: Callable[[], None] = lambda: None) -> None:
        """`progress` is called once a prompt. Raises InputError when nothing is drafted."""
        rounds: list[Round] = []
        for prompt in self._prompts:
            rounds += decode(self._deep, prompt, self._max_new_tokens).rounds
            progress()
        accepted = [one.accepted for one in rounds if one.known == self._longest]
        if not accepted:
            raise InputError(f"no draft of {self._longest} tokens was made: give a larger max_new_tokens")
        self._acceptances = conditional(accepted, self._longest)

    def turn(self) -> None:
        """Answer the next prompt both ways."""
        lap, place = divmod(self._turns, len(self._prompts))
        engines = (self._plain, self._drafting)
        answers = {
            engine: engine.generate(self._prompts[place], max_new_tokens=self._max_new_tokens)
            for engine in (engines if lap % 2 else engines[::-1])
        }
        plain, drafting = (answers[engine].stats for engine in engines)  # type: ignore[union-attr]
        self._turns += 1
        self._drafts += drafting.num_drafts
        self._accepted += drafting.num_accepted_tokens
        if plain.tokens_per_s and drafting.tokens_per_s:  # an answer of one block has no speed
            spent = plain.num_output_tokens / plain.tokens_per_s, drafting.num_output_tokens / drafting.tokens_per_s
            self._seconds.setdefault(place, []).append(spent)

    def result(self) -> Tried:
        """The speed-up is that of all prompts together, each of which counts with the median of its turns."""
        length = 1.0 + self._accepted / self._drafts if self._drafts else 1.0
        plain, drafting = (sum(median(pair[i] for pair in pairs) for pairs in self._seconds.values()) for i in (0, 1))
        return Tried(self._acceptances, length, plain / drafting if drafting else None)


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
