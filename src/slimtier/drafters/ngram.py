"""Prompt lookup: what followed the row's last tokens when they occurred before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimtier.errors import ConfigError
from slimtier.types import Draft, Verdict

if TYPE_CHECKING:
    from slimtier.drafters.base import DraftContext, Reading


_LONGEST_MATCH = 16  # tokens before a copy that are compared to say how good the match is


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens to copy, and how many tokens before them (at most 16) are the row's last ones."""

    token_ids: tuple[int, ...]
    size: int


class NgramDrafter:
    """Drafts by copying (prompt lookup decoding, Saxena 2023; LLMA, Yang et al. 2023): no model, no training.

    The row's last n tokens are looked up among its earlier tokens, for n from `max_ngram` down to `min_ngram`; the
    first n that occurs decides. Of its occurrences the most recent one that is followed by enough tokens is copied,
    else the one followed by most, over and over, as looking up the copy's own end would do.

    Example: tokens 7 8 9 4 7 8 5 2 7 8, max_ngram 3, min_ngram 2, limit 3. The last three, 2 7 8, do not occur
    before. The last two, 7 8, do, followed by 9 4 7 and, more recently, by 5 2 7: the draft is 5 2 7. With limit 5
    the recent one has only 4 tokens to offer (5 2 7 8), so the earlier one is copied: 9 4 7 8 5. With
    limit 10 that one runs out too, and begins again: 9 4 7 8 5 2 7 8 9 4.
    """

    name = "ngram"
    capture: tuple[int, ...] = ()

    def __init__(self, min_ngram: int = 2, max_ngram: int = 4) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ConfigError(f"min_ngram is {min_ngram} and max_ngram {max_ngram}: give 1 <= min_ngram <= max_ngram")
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self._indexes: dict[int, _Index] = {}

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return f"{self.name} {self.sizes[-1]}-{self.sizes[0]}"

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        return [self._propose_row(*each) for each in zip(contexts, limits, strict=True)]

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn: only tokens of the output are indexed, and they come with the next context."""

    def read(self, readings: Sequence[Reading]) -> None:
        """Nothing to do: no features are asked for."""

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._indexes) if keys is None else keys:
            self._indexes.pop(key, None)

    def _propose_row(self, context: DraftContext, limit: int) -> Draft:
        return Draft(self.match(context, limit).token_ids)

    def match(self, context: DraftContext, limit: int) -> Match:
        """What the row would copy, up to `limit` tokens."""
        tokens = context.token_ids
        index = self._indexes.get(context.key)
        if index is None or not index.continues_to(tokens):
            index = self._indexes[context.key] = _Index(self.sizes)
        index.extend(tokens)
        start = index.find(tokens, limit) if limit > 0 else None
        if start is None:
            return Match((), 0)
        most = min(start, _LONGEST_MATCH)
        size = next((n for n in range(most) if tokens[start - 1 - n] != tokens[-1 - n]), most)
        return Match(tuple(tokens[start + offset % (len(tokens) - start)] for offset in range(limit)), size)


class _Index:
    """Where each n-gram of a growing row ends; a token is indexed once, when it has a successor."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ends: dict[int, dict[tuple[int, ...], list[int]]] = {size: {} for size in sizes}
        self._indexed = 0  # n-grams that end at or before this token count are in
        self._last: int | None = None

    def continues_to(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be the indexed row, grown: only a row that was cut or replaced can not."""
        return self._indexed == 0 or (len(tokens) > self._indexed and tokens[self._indexed - 1] == self._last)

    def extend(self, tokens: Sequence[int]) -> None:
        for end in range(self._indexed + 1, len(tokens)):
            for size, ends in self._ends.items():
                if size <= end:
                    ends.setdefault(tuple(tokens[end - size : end]), []).append(end)
        if len(tokens) > 1:
            self._indexed, self._last = len(tokens) - 1, tokens[len(tokens) - 2]

    def find(self, tokens: Sequence[int], limit: int) -> int | None:
        """Where the continuation of the longest known suffix starts, as an index into `tokens`."""
        for size, ends in self._ends.items():
            found = ends.get(tuple(tokens[len(tokens) - size :])) if size <= len(tokens) else None
            if found:
                recent = bisect_right(found, len(tokens) - limit)  # ends up to here have `limit` tokens after them
                return found[max(recent - 1, 0)]
        return None
