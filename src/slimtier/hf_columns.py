"""The answers of a batch as transformers' `generate` builds them: a column of one token a row at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from transformers.generation import logits_process

from slimtier.models.base import Cache
from slimtier.text import TextStream
from slimtier.types import Draft, LogitsProcessor, Verdict
from slimtier.verifiers.base import Verifier, VerifyRow

# These hold something for each prompt of the batch, so that a row alone will not do.
OF_A_BATCH = (EncoderNoRepeatNGramLogitsProcessor, EncoderRepetitionPenaltyLogitsProcessor)
Tensors = tuple[torch.Tensor, ...]


class RowProcessor:
    """transformers' logits processors as a function of one row: (token ids, logits [vocab]) -> scores [vocab].

    They see what they see in generate: the ids [1, padding + tokens] with the row's padding before them. A processor
    that may know the rows by their number is given `num_rows` copies of the row, of which row `row` is taken.
    """

    def __init__(
        self, processors: Sequence[Any], row: int, num_rows: int, padding: Sequence[int], device: torch.device
    ) -> None:
        """`padding`: the ids that hide before the row's tokens; `device`: of generate's input_ids."""
        self._processors = [_of_row(processor, row) for processor in processors]
        self._row = row
        self._num_rows = num_rows
        self._padding = tuple(padding)
        self._device = device

    def __call__(self, token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor([[*self._padding, *token_ids]], device=self._device)
        scores = logits[None].to(self._device)
        for processor in self._processors:
            if self._num_rows == 1 or _is_rowwise(processor):
                scores = processor(ids, scores)
            else:
                batch = processor(ids.repeat(self._num_rows, 1), scores.repeat(self._num_rows, 1))
                scores = batch[self._row : self._row + 1]
        return scores[0]


def _of_row(processor: Any, row: int) -> Any:
    """The processor for one row of the batch, where it can be made: the other rows need not be asked about then."""
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        prompt, allowed = row // processor._num_beams, processor._prefix_allowed_tokens_fn
        return PrefixConstrainedLogitsProcessor(lambda _, prefix: allowed(prompt, prefix), 1)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        hidden = processor.prompt_ignore_length
        if isinstance(hidden, torch.Tensor):
            return RepetitionPenaltyLogitsProcessor(processor.penalty, int(hidden[row]))
    return processor


def _is_rowwise(processor: Any) -> bool:
    return type(processor).__module__ == logits_process.__name__ and not isinstance(processor, OF_A_BATCH)


class Columns:
    """Rows that advance by blocks of unequal length, put together column by column as plain decoding does it.

    As soon as every row has its token for the next column, the stopping criteria are called on all ids so far, once a
    column and in order, and the streamer gets the column. So a criterion may look at the whole batch or keep count.
    Where a criterion is about EOS, rows that ended get padding; where none is, they go on until all have ended.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        criteria: Any,
        pad_token_id: int,
        streamer: Any = None,
        scores: Callable[[int], Tensors] | None = None,
    ) -> None:
        """`input_ids` [B, L] are the prompts; `scores(n)`, if the criteria are to see them, are those of n columns."""
        self.input_ids = input_ids  # [B, L + count]
        self.count = 0
        self.ended = False
        self._criteria = criteria
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._pad_token_id = pad_token_id
        self._streamer = streamer
        self._scores = scores
        eos = [one.eos_token_id.tolist() for one in criteria if isinstance(one, EosTokenCriteria)]
        self._eos_token_ids = {token for tokens in eos for token in tokens}
        self._unfinished = torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
        self._going = [True] * len(input_ids)  # the rows whose next token is asked for
        self._waiting: list[deque[int]] = [deque() for _ in input_ids]  # tokens of rows ahead of the last column
        self._missing = len(input_ids)  # rows without a token for the next column

    def push(self, row: int, token: int) -> bool:
        """The row's next token. True when the row needs no more."""
        self._missing -= not self._waiting[row] and self._going[row]
        self._waiting[row].append(token)
        while not self.ended and not self._missing:
            self._add_column()
            self._missing = sum(going and not self._waiting[each] for each, going in enumerate(self._going))
        return self.ended or not self._going[row] or (self._pads and token in self._eos_token_ids)

    def _add_column(self) -> None:
        rows = zip(self._waiting, self._going, strict=True)
        tokens = torch.tensor([waiting.popleft() if going else self._pad_token_id for waiting, going in rows])
        column = tokens.to(self.input_ids.device)
        self.input_ids = torch.cat([self.input_ids, column[:, None]], dim=-1)
        self.count += 1
        scores = None if self._scores is None else self._scores(self.count)
        self._unfinished = self._unfinished & ~self._criteria(self.input_ids, scores)
        if self._streamer is not None:
            self._streamer.put(tokens)
        if self._pads:
            self._going = [bool(row) for row in self._unfinished.tolist()]
        self.ended = not bool(self._unfinished.any())


class RowText(TextStream):
    """In the place of a row's text: ends the row where its columns end it."""

    def __init__(self, columns: Columns, row: int) -> None:
        super().__init__(None)
        self._columns = columns
        self._row = row

    def push(self, token_id: int) -> bool:
        return self._columns.push(self._row, token_id)


class Recorder:
    """A verifier of one row that remembers what each output token was chosen from. `first`: the index in the row of
    the first output token."""

    def __init__(self, inner: Verifier, first: int) -> None:
        self.name = inner.name
        self.lossless, self.steady = inner.lossless, inner.steady
        self.wants_draft_probs = inner.wants_draft_probs
        self._inner = inner
        self._first = first
        self._logits: dict[int, torch.Tensor] = {}  # [1, vocab] by the index of the token in the row
        self._scores: dict[int, torch.Tensor] = {}

    def logits(self, count: int) -> Tensors:
        """The model's logits of the first `count` output tokens, [1, vocab] each."""
        return tuple(self._logits[self._first + index] for index in range(count))

    def scores(self, count: int) -> Tensors:
        """The same after the logits processors."""
        return tuple(self._scores[self._first + index] for index in range(count))

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`. A block ends at its first changed token, so the last to judge an index is the slot
        that gave its token."""
        recorded = [replace(row, sampling=replace(row.sampling, processors=(self._recording(row),))) for row in rows]
        return self._inner.verify(recorded, drafts, cache, capture)

    def _recording(self, row: VerifyRow) -> LogitsProcessor:
        def record(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            self._logits[len(token_ids)] = logits[None]
            for processor in row.sampling.processors:
                logits = processor(token_ids, logits)
            self._scores[len(token_ids)] = logits[None]
            return logits

        return record
