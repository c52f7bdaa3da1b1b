"""Prompt lookup."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slimtier.drafters.base import DraftContext
from slimtier.drafters.ngram import NgramDrafter
from slimtier.errors import ConfigError
from slimtier.noise import Noise
from slimtier.types import SamplingParams


def draft(drafter: NgramDrafter, tokens: Sequence[int], limit: int, key: int = 0) -> tuple[int, ...]:
    context = DraftContext(key, tokens, 1, SamplingParams(), Noise(0))
    proposal = drafter.propose([context], [limit])[0]
    assert proposal.probs is None
    return proposal.token_ids


def by_scanning(tokens: Sequence[int], sizes: range, limit: int) -> tuple[int, ...]:
    """The same rule without an index."""
    for size in sizes:
        suffix = list(tokens[len(tokens) - size :])
        ends = [end for end in range(size, len(tokens)) if list(tokens[end - size : end]) == suffix]
        if ends:
            enough = [end for end in ends if len(tokens) - end >= limit]
            start = enough[-1] if enough else ends[0]
            return tuple((list(tokens[start:]) * limit)[:limit])
    return ()


def test_the_worked_example() -> None:
    tokens = [7, 8, 9, 4, 7, 8, 5, 2, 7, 8]
    assert draft(NgramDrafter(2, 3), tokens, 3) == (5, 2, 7)
    assert draft(NgramDrafter(2, 3), tokens, 4) == (5, 2, 7, 8)
    assert draft(NgramDrafter(2, 3), tokens, 5) == (9, 4, 7, 8, 5)
    assert draft(NgramDrafter(2, 3), tokens, 10) == (9, 4, 7, 8, 5, 2, 7, 8, 9, 4)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ()),
        ([1], ()),
        ([1, 1], (1, 1, 1)),
        ([1, 2, 3], ()),
        ([1, 2, 3, 1], (2, 3, 1)),
        ([5, 1, 2, 6, 1, 3, 5, 1], (2, 6, 1)),  # the longer suffix 5 1 goes before the more recent 1
        ([4, 4, 4, 4], (4, 4, 4)),
    ],
)
def test_small_rows(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert draft(NgramDrafter(1, 3), tokens, 3) == expected


def test_a_growing_row_gives_what_a_scan_of_it_gives() -> None:
    generator = random.Random(0)
    for min_ngram, max_ngram in ((1, 1), (1, 3), (2, 4), (3, 3)):
        drafter = NgramDrafter(min_ngram, max_ngram)
        tokens = [generator.randrange(4) for _ in range(5)]
        while len(tokens) < 120:
            limit = generator.randrange(0, 6)
            expected = by_scanning(tokens, range(max_ngram, min_ngram - 1, -1), limit) if limit else ()
            assert draft(drafter, tokens, limit) == expected
            tokens += [generator.randrange(4) for _ in range(generator.randrange(1, 7))]


def test_each_token_is_indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(list):
        reads = 0

        def __getitem__(self, index):
            Counting.reads += 1
            return super().__getitem__(index)

    drafter = NgramDrafter(2, 3)
    tokens = Counting(range(1000))
    draft(drafter, tokens, 4)
    first = Counting.reads
    tokens.append(3)
    draft(drafter, tokens, 4)
    assert Counting.reads - first < 15 < first


def test_rows_do_not_see_each_other_and_reset_forgets() -> None:
    drafter = NgramDrafter(1, 2)
    contexts = [DraftContext(key, [key, 9, 5, 9], 1, SamplingParams(), Noise(0)) for key in (3, 4)]
    assert [each.token_ids for each in drafter.propose(contexts, [1, 2])] == [(5,), (5, 9)]
    assert draft(drafter, [1, 2, 2], 1, key=5) == (2,)
    drafter.reset([3, 99])
    assert draft(drafter, [9, 9, 1, 9], 1, key=3) == (1,)
    drafter.reset()
    assert drafter._indexes == {}


def test_a_row_that_was_cut_or_replaced_is_indexed_afresh() -> None:
    drafter = NgramDrafter(1, 2)
    assert draft(drafter, [1, 2, 3, 1], 2) == (2, 3)
    assert draft(drafter, [1, 5], 2) == ()
    assert draft(drafter, [1, 5, 7, 1], 2) == (5, 7)
    assert draft(drafter, [4, 4], 2) == (4, 4)


@pytest.mark.parametrize(("min_ngram", "max_ngram"), [(0, 3), (4, 3), (-1, -1)])
def test_sizes_without_meaning_are_refused(min_ngram: int, max_ngram: int) -> None:
    with pytest.raises(ConfigError, match="min_ngram"):
        NgramDrafter(min_ngram, max_ngram)
