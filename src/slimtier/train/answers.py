"""The target answers conversations, many at a time, and what it computed on the way is kept.

Continuous batching: a row that is done makes room for the next conversation at once, whose prompt is read in chunks
in the same forwards in which the others write. A row's result depends on its own conversation and number only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from slimtier.models.base import Target
from slimtier.train.answer_settings import AnswerSettings

PROMPT_CHUNK = 64  # tokens of one prompt in one forward
_LOOP = 64  # an answer whose last tokens repeat a piece of at most half as many is cut: it would go on for ever
_LOOP_STEP = 8


@dataclass(frozen=True, slots=True)
class Answered:
    """One finished conversation: token_ids [n]; answer [n], which of them the target wrote; features [n, S · hidden];
    top_ids and top_logprobs [answer tokens, top_n], the distribution at temperature 1 of each of those;
    final [n, hidden], what the target's head took."""

    number: int
    token_ids: torch.Tensor
    answer: torch.Tensor
    features: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    final: torch.Tensor


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
        self.dropped: dict[str, int] = {}
        self.finished = 0
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
                self._drop("the prompt is longer than max_prompt_tokens")
                continue
            temperature = self.settings.temperatures[number % len(self.settings.temperatures)]
            draws = np.random.default_rng((self.settings.seed, number))
            return _Row(number, script, temperature, draws, opening, [False] * len(opening))
        return None

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

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
        ids, logprobs = self._top(hidden[[ends[i] - 1 for i in ready]])
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

    def _top(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """ids and log probabilities [M, top_n] of the most probable tokens."""
        top = getattr(self.target, "topk", None)
        if top is not None:
            values, ids, logsumexp = top(hidden, self.settings.top_n)
            return ids, values - logsumexp[:, None]
        best = self.target.head(hidden).log_softmax(1).topk(self.settings.top_n, dim=1)
        return best.indices.cpu(), best.values.cpu()

    def _append(self, row: _Row, token: int, top_ids: torch.Tensor, top_logprobs: torch.Tensor) -> bool:
        """Add a written token; False when the conversation is over."""
        row.tokens.append(token)
        row.written.append(token)
        row.answer.append(not row.script.asking)
        if row.answer[-1]:
            row.tops.append((top_ids, top_logprobs))
        if token not in self.ends:
            full = len(row.written) >= self.settings.max_new_tokens or len(row.tokens) >= self._capacity
            return not full and not _loops(row.written)
        following = row.script.after(row.written)
        if following is None or len(row.tokens) + len(following) + self.settings.max_new_tokens > self._capacity:
            return False
        row.tokens.extend(following)
        row.answer.extend([False] * len(following))
        row.written = []
        return True

    def _finish(self, row: _Row) -> Answered | None:
        """What is kept of the row; its last token was never read and has no features, so it goes."""
        features = torch.cat(row.features).cpu()
        if not bool(torch.isfinite(features).all()):
            self._drop("a state is not finite in float16")
            return None
        if not row.tops:
            self._drop("no answer was written")
            return None
        count = len(features)
        answer = torch.tensor(row.answer[: count + 1], dtype=torch.uint8)
        return Answered(
            row.number,
            torch.tensor(row.tokens[: count + 1], dtype=torch.int32),
            answer,
            torch.cat((features, features.new_zeros(1, features.shape[1]))),
            torch.stack([ids for ids, _ in row.tops]).to(torch.int32),
            torch.stack([logprobs for _, logprobs in row.tops]).half(),
            torch.cat(row.final).float().cpu(),
        )


def _draw(row: _Row, ids: torch.Tensor, logprobs: torch.Tensor) -> int:
    """The next token by the row's own random numbers, one for each token, whatever the batch."""
    temperature = 1.0 if row.script.asking else row.temperature  # greedy questions would all be the same one
    if temperature == 0.0:
        return int(ids[0])
    weights = np.exp((logprobs.numpy().astype(np.float64) - float(logprobs[0])) / temperature)
    place = int(np.searchsorted(np.cumsum(weights), row.draws.random() * weights.sum(), side="right"))
    return int(ids[min(place, len(weights) - 1)])


def _loops(answer: Sequence[int]) -> bool:
    """Whether the answer's end only repeats itself."""
    if len(answer) < 2 * _LOOP or len(answer) % _LOOP_STEP:
        return False
    tail = answer[-2 * _LOOP :]
    return any(tail[period:] == tail[:-period] for period in range(1, _LOOP // 2 + 1))
