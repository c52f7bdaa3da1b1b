"""The text that routes are judged on: prompts, answered by the target itself, and a stretch of each answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtier.engine import Engine
from slimtier.errors import ConfigError, InputError
from slimtier.jsonl import numbered_rows
from slimtier.loading import Loaded
from slimtier.prompts import encode_prompt
from slimtier.registry import DRAFTERS

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
_BATCH = 8  # prompts that are answered together
_MOST_PROMPT_TOKENS = 1024
_GOLDEN = 0.6180339887498949  # its multiples, less their whole parts, are spread evenly over 0 … 1


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How much text: `positions` in all, at most `stretch` of an answer, which has at most `max_new_tokens`; one prompt
    in `held_out_every` is not searched on but kept for an honest number (0: none). `stretch` is also how long a route
    goes on from its own keys and values."""

    positions: int = 512
    stretch: int = 24
    max_new_tokens: int = 64
    held_out_every: int = 4

    def __post_init__(self) -> None:
        for name in ("positions", "stretch", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.held_out_every < 0 or self.held_out_every == 1:
            raise ConfigError(f"held_out_every is {self.held_out_every}: give 2 or more, or 0 to hold nothing out")


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer. The target reads token_ids[: start], and token_ids[start : stop] are predicted.
    `inputs`: what an encoder reads, () where there is none."""

    token_ids: tuple[int, ...]
    start: int
    stop: int
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Texts:
    """Those that routes are searched on, and those held out."""

    searched: tuple[Text, ...]
    held_out: tuple[Text, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.searched, self.held_out)).encode()).hexdigest()[:16]


def read_prompts(path: Path | None) -> list[str]:
    """Rows {"prompt": text} or {"turns": [text, ...]}, of which the first turn counts; None: those that come with the
    package. Raises InputError, with the line's number, for anything else."""
    file = OWN_PROMPTS if path is None else path
    prompts = []
    for number, row in numbered_rows(file):
        given = row.get("prompt", row.get("turns")) if isinstance(row, dict) else None
        first = given[0] if isinstance(given, list) and given else given
        if not isinstance(first, str) or not first.strip():
            raise InputError(
                f'line {number} of {file} has no prompt: write {{"prompt": "..."}} or {{"turns": ["..."]}}'
            )
        prompts.append(first)
    if not prompts:
        raise InputError(f'{file} has no prompts: write rows like {{"prompt": "..."}}')
    return prompts


def calibrate(
    loaded: Loaded,
    prompts: Sequence[str],
    plan: TextPlan,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Texts:
    """Let the target answer as many of the prompts, evenly taken from the list, as the plan has use for, at
    temperature 0. Prompts that are too long are passed over; `progress` is told of prompts.

    Raises InputError when no prompt has an answer.
    """
    asked = _encoded(loaded, prompts, plan)
    wanted = -(-plan.positions // plan.stretch)
    every = plan.held_out_every
    asked = spread(asked, wanted + wanted // (every - 1) if every else wanted)
    auto = DRAFTERS["auto"]
    engine = Engine(
        loaded.target,
        auto.build(loaded, {}, _no_other),
        tokenizer=loaded.tokenizer,
        num_speculative_tokens=auto.num_speculative_tokens,
    )
    texts: list[Text] = []
    for begun in range(0, len(asked), _BATCH):
        batch = asked[begun : begun + _BATCH]
        answers = engine.generate([list(ids) for ids in batch], max_new_tokens=plan.max_new_tokens)
        assert isinstance(answers, list)
        rows = zip(batch, answers, strict=True)
        texts += [
            _text(loaded.target, ids, answer.token_ids, plan.stretch, begun + i) for i, (ids, answer) in enumerate(rows)
        ]
        progress(len(texts), len(asked))
    return _divided([text for text in texts if text.stop > text.start], plan)


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly taken."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _no_other(name: str) -> Loaded:
    raise AssertionError("the drafter auto needs no other model")


def _encoded(loaded: Loaded, prompts: Sequence[str], plan: TextPlan) -> list[list[int]]:
    info, tokenizer = loaded.target.info, loaded.tokenizer
    chat = tokenizer is not None and tokenizer.has_chat_template
    as_asked: list[Any] = [[{"role": "user", "content": text}] if chat else text for text in prompts]
    encoded = [encode_prompt(one, tokenizer, info.vocab_size) for one in as_asked]
    most = min(_MOST_PROMPT_TOKENS, info.max_positions - plan.max_new_tokens)
    short = [ids for ids in encoded if len(ids) <= most]
    if not short:
        raise InputError(f"all {len(encoded)} prompts have more than {most} tokens: give shorter ones")
    return short


def _text(target: Any, ids: Sequence[int], answer: Sequence[int], stretch: int, number: int) -> Text:
    """The stretch begins elsewhere in each answer, for answers begin alike."""
    encodes = bool(getattr(target, "is_encoder_decoder", False))
    before = [target.decoder_start_token_id] if encodes else list(ids)
    length = min(stretch, len(answer))
    start = len(before) + round((len(answer) - length) * (number * _GOLDEN % 1.0))
    return Text((*before, *answer), start, start + length, tuple(ids) if encodes else ())


def _divided(texts: Sequence[Text], plan: TextPlan) -> Texts:
    every = plan.held_out_every
    held_out = [text for i, text in enumerate(texts) if every and i % every == every - 1]
    searched: list[Text] = []
    room = plan.positions
    for text in (text for i, text in enumerate(texts) if not every or i % every != every - 1):
        if room > 0:
            stop = min(text.stop, text.start + room)
            searched.append(Text(text.token_ids, text.start, stop, text.inputs))
            room -= stop - text.start
    if not searched:
        raise InputError("the model answered no prompt with a token: give other prompts")
    return Texts(tuple(searched), tuple(held_out))
