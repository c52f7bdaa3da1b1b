"""The target reads conversations that were written elsewhere, and what it computed on the way is kept.

Nothing is decoded, so a forward has thousands of tokens. A CPU, which multiplies all it can with the 64 rows of an
`AnswerWriter`, gains little by that. What is learned is the target's distribution after each word of the answers,
whoever wrote them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch

from slimtier.models.base import Target
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.answered import NO_ANSWER, NOT_FINITE, TOO_LONG, Answered, most_probable, pack
from slimtier.train.transcript import Transcript

POSITIONS = 4096  # in one forward, or one conversation


class TranscriptReader:
    """Reads transcripts with `target`. `dropped`, `finished`: as an `AnswerWriter`'s. Of the `greedy_tokens` that were
    the most probable to their writer, `agreed` are to the target. `capacity`: the longest conversation, in tokens."""

    def __init__(self, target: Target, settings: AnswerSettings) -> None:
        self.target, self.settings = target, settings
        self.dropped: Counter[str] = Counter()
        self.finished = self.greedy_tokens = self.agreed = 0
        self.capacity = min(target.info.max_positions, settings.max_positions)

    @property
    def agreement(self) -> float | None:
        """The share of the greedy tokens that the target agrees with."""
        return self.agreed / self.greedy_tokens if self.greedy_tokens else None

    def read(self, transcripts: Iterable[Transcript]) -> Iterator[Answered]:
        """Each conversation with an answer, in their order."""
        cache = self.target.begin(self.settings.rows, self.capacity)
        for batch in self._batches(transcripts):
            cache.crop([0] * self.settings.rows)
            lengths = [len(one.token_ids) - 1 for one in batch]
            read = [token for one in batch for token in one.token_ids[:-1]]
            padded = lengths + [0] * (self.settings.rows - len(batch))
            hidden, features = self.target.forward(read, cache, padded, capture=self.settings.layers)
            # [answer tokens of all]: the position before each, where it was foretold
            places = [begin + i for begin, one in _begins(batch) for i, marked in enumerate(one.answer[1:]) if marked]
            ids, logprobs = most_probable(self.target, hidden[places], self.settings.top_n)
            streams = torch.cat([stream.half() for stream in features], dim=1)
            yield from self._rows(batch, streams, hidden, ids, logprobs)

    def _batches(self, transcripts: Iterable[Transcript]) -> Iterator[list[Transcript]]:
        batch: list[Transcript] = []
        for one in transcripts:
            if not any(one.answer):
                self.dropped[TOO_LONG if len(one.token_ids) > self.settings.max_prompt_tokens else NO_ANSWER] += 1
                continue
            held = sum(len(other.token_ids) for other in batch)
            if batch and (held + len(one.token_ids) > POSITIONS or len(batch) == self.settings.rows):
                yield batch
                batch = []
            batch.append(one)
        if batch:
            yield batch

    def _rows(
        self,
        batch: list[Transcript],
        streams: torch.Tensor,
        hidden: torch.Tensor,
        ids: torch.Tensor,
        logprobs: torch.Tensor,
    ) -> Iterator[Answered]:
        answers = 0
        for begin, one in _begins(batch):
            part = slice(begin, begin + len(one.token_ids) - 1)
            count = sum(one.answer)
            tops = ids[answers : answers + count], logprobs[answers : answers + count]
            answers += count
            row = pack(one.number, (one.token_ids, one.answer), streams[part], hidden[part], tops)
            if row is None:
                self.dropped[NOT_FINITE] += 1
                continue
            if one.greedy:
                self.greedy_tokens += count
                self.agreed += int((row.top_ids[:, 0] == row.token_ids[row.answer.bool()]).sum())
            self.finished += 1
            yield row


def _begins(batch: list[Transcript]) -> Iterator[tuple[int, Transcript]]:
    """Where each one's tokens begin in a forward."""
    ends = accumulate((len(one.token_ids) - 1 for one in batch), initial=0)
    return zip(ends, batch, strict=False)
