"""The target answers conversations, many at a time, and what it computed on the way is kept.

Continuous batching: a row that is done makes room for the next conversation at once, whose prompt is read in chunks
in the same forwards in which the others write. A row's result depends on its own conversation and number only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from slimtier.models.base import Target
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.answered import NO_ANSWER, NOT_FINITE, TOO_LONG, Answered, most_probable, pack

PROMPT_CHUNK = 64  # tokens of one prompt in one forward
_LOOP = 64  # an answer whose last tokens repeat a piece of at most half as many is cut: it would go on for ever
_LOOP_STEP = 8


class Script(Protocol):
    """A conversation as tokens, see `Dialogue`."""

    @property
    def asking(self) -> bool: ...
    def opening(self) -> list[int]: ...
    def after(self, written: Sequence[int]) -> list[int] | None: ...


@dataclass(slots=True, eq=False)
class _Row:
    """A conversation being written: `tokens` so far, of which the cache holds the first `read`; `written` is the piece
    in progress. `number` names the conversation and seeds its draws."""

    number: int
    script: Script
    temperature: float
    draws: np.random.Generator
    tokens: list[int]
    answer: list[bool]
    written: list[int] = field(default_factory=list)
    read: int = 0
    features: list[torch.Tensor] = field(default_factory=list)
    final: list[torch.Tensor] = field(default_factory=list)
    tops: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def piece(self) -> list[int]:
        return self.tokens[self.read : self.read + PROMPT_CHUNK]


class AnswerWriter:
    """Writes the answers of `scripts` with `target`. `dropped` counts conversations that were not kept, by reason;
    `finished` those that were."""

    def __init__(self, target: Target, settings: AnswerSettings, eos_token_ids: Sequence[int]) -> None:
        self.target, self.settings = target, settings
        self.ends = frozenset(eos_token_ids)
        self.dropped: Counter[str] = Counter()
        self.finished = 0
        self.agreement = None  # what it writes is its own
        self._capacity = min(target.info.max_positions, settings.max_positions)

    def write(self, scripts: Iterator[tuple[int, Script]]) -> Iterator[Answered]:
        """Each conversation as it is finished, not in the order of `scripts`."""
        rows: list[_Row | None] = [None] * self.settings.rows
        cache = self.target.begin(len(rows), self._capacity)
        while True:
            self._seat(rows, cache, scripts)
            if not any(rows):
                return
            pieces = [row.piece() if row else [] for row in rows]
            lengths = [len(piece) for piece in pieces]
            hidden, features = self.target.forward(
                [token for piece in pieces for token in piece], cache, lengths, capture=self.settings.layers
            )
            streams = torch.cat([stream.half() for stream in features], dim=1)
            self._keep(rows, lengths, hidden, streams)
            yield from self._advance(rows, lengths, hidden)

    def _seat(self, rows: list[_Row | None], cache: Any, scripts: Iterator[tuple[int, Script]]) -> None:
        """Give each free place to the next conversation whose prompt is not too long."""
        for place, row in enumerate(rows):
            if row is not None:
                continue
            rows[place] = self._next(scripts)
            cache.crop([0 if i == place else length for i, length in enumerate(cache.lengths)])

    def _next(self, scripts: Iterator[tuple[int, Script]]) -> _Row | None:
        for number, script in scripts:
            opening = script.opening()
            if len(opening) > self.settings.max_prompt_tokens:
                self.dropped[TOO_LONG] += 1
                continue
            temperature = self.settings.temperature_of(number)
            draws = np.random.default_rng((self.settings.seed, number))
            return _Row(number, script, temperature, draws, opening, [False] * len(opening))
        return None

    def _keep(
        self, rows: Sequence[_Row | None], lengths: Sequence[int], hidden: torch.Tensor, streams: torch.Tensor
    ) -> None:
        for row, end, length in zip(rows, accumulate(lengths), lengths, strict=True):
            if row is not None:
                row.features.append(streams[end - length : end])
                row.final.append(hidden[end - length : end])
                row.read += length

    def _advance(self, rows: list[_Row | None], lengths: Sequence[int], hidden: torch.Tensor) -> Iterator[Answered]:
        """Draw the next token of every row whose tokens are all read."""
        ends = list(accumulate(lengths))
        ready = [i for i, row in enumerate(rows) if row is not None and row.read == len(row.tokens)]
        if not ready:
            return
        ids, logprobs = most_probable(self.target, hidden[[ends[i] - 1 for i in ready]], self.settings.top_n)
        for place, top_ids, top_logprobs in zip(ready, ids, logprobs, strict=True):
            row = rows[place]
            assert row is not None
            going = self._append(row, _draw(row, top_ids, top_logprobs), top_ids, top_logprobs)
            if not going:
                rows[place] = None
                finished = self._finish(row)
                if finished is not None:
                    self.finished += 1
                    yield finished

    def _append(self, row: _Row, token: int, top_ids: torch.Tensor, top_logprobs: torch.Tensor) -> bool:
        """Add a written token; False when the conversation is over."""
        row.tokens.append(token)
        row.written.append(token)
        row.answer.append(not row.script.asking)
        if row.answer[-1]:
            row.tops.append((top_ids, top_logprobs))
        if token not in self.ends:
            full = len(row.written) >= self.settings.max_new_tokens or len(row.tokens) >= self._capacity
            return not full and not loops(row.written)
        following = row.script.after(row.written)
        if following is None or len(row.tokens) + len(following) + self.settings.max_new_tokens > self._capacity:
            return False
        row.tokens.extend(following)
        row.answer.extend([False] * len(following))
        row.written = []
        return True

    def _finish(self, row: _Row) -> Answered | None:
        """What is kept of the row; its last token was never read and has no features, so it goes."""
        if not row.tops:
            self.dropped[NO_ANSWER] += 1
            return None
        tops = torch.stack([ids for ids, _ in row.tops]), torch.stack([logprobs for _, logprobs in row.tops])
        spoken = row.tokens, row.answer
        packed = pack(row.number, spoken, torch.cat(row.features), torch.cat(row.final), tops)
        if packed is None:
            self.dropped[NOT_FINITE] += 1
        return packed


def _draw(row: _Row, ids: torch.Tensor, logprobs: torch.Tensor) -> int:
    """The next token by the row's own random numbers, one for each token, whatever the batch."""
    temperature = 1.0 if row.script.asking else row.temperature  # greedy questions would all be the same one
    if temperature == 0.0:
        return int(ids[0])
    weights = np.exp((logprobs.numpy().astype(np.float64) - float(logprobs[0])) / temperature)
    place = int(np.searchsorted(np.cumsum(weights), row.draws.random() * weights.sum(), side="right"))
    return int(ids[min(place, len(weights) - 1)])


def loops(answer: Sequence[int]) -> bool:
    """Whether the answer's end only repeats itself."""
    if len(answer) < 2 * _LOOP or len(answer) % _LOOP_STEP:
        return False
    tail = answer[-2 * _LOOP :]
    return any(tail[period:] == tail[:-period] for period in range(1, _LOOP // 2 + 1))
