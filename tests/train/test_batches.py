"""Which rows a step takes, and how they are packed."""

from __future__ import annotations

from pathlib import Path

import torch

from slimtier.train.batches import HELD_OUT, Schedule, load, split_rows
from slimtier.train.shards import RowPlace, open_capture
from tests.train.captures import Recipe, write_capture


def places(count: int, labels: int = 10) -> list[RowPlace]:
    """Rows of `labels` or a few more slots, with digests that are far apart."""
    return [
        RowPlace(0, 40 * i, 40 * i + 40, 0, ((5, 5 + labels + i % 4),), (i + 1) * 0x9E3779B97F4A7C15 % 2**63)
        for i in range(count)
    ]


def test_a_row_stays_on_its_side_however_many_there_are() -> None:
    rows = places(2000)
    few, many = split_rows(rows[:1000], 64), split_rows(rows, 64)
    assert set(few.held_out) <= set(many.held_out)
    assert not set(many.held_out) & set(many.train)
    assert len(many.held_out) + len(many.train) == 2000
    assert 0.5 < len(many.held_out) * HELD_OUT / 2000 < 2
    assert len(split_rows(places(9000), 64).validation) == 64


def test_rows_of_the_same_tokens_stay_together() -> None:
    rows = [*places(30), *places(30)]
    split = split_rows(rows, 64)
    assert {row.digest for row in split.held_out}.isdisjoint({row.digest for row in split.train})


def test_few_rows_still_hold_one_out() -> None:
    split = split_rows(places(5), 64)
    assert (len(split.train), len(split.validation)) == (4, 1)
    assert split_rows(places(1), 64).validation == ()


def test_an_epoch_takes_every_row_once_in_even_batches() -> None:
    rows = places(300)
    schedule = Schedule(rows, 100, seed=1)
    steps = schedule.steps(1.0)
    batches = [schedule.at(step) for step in range(steps)]
    assert sorted(row.start for batch in batches for row in batch) == sorted(row.start for row in rows)
    sizes = [sum(row.labels for row in batch) for batch in batches]
    assert max(sizes) <= 120
    assert min(sizes) >= 80


def test_the_order_depends_on_seed_and_step_alone() -> None:
    rows = places(300)
    schedule = Schedule(rows, 100, seed=1)
    first = [schedule.at(step) for step in range(schedule.steps(2.0))]
    later = Schedule(rows, 100, seed=1)
    assert [later.at(step) for step in reversed(range(len(first)))] == first[::-1]
    half = len(first) // 2
    assert first[:half] != first[half:]  # another order each epoch
    assert Schedule(rows, 100, seed=2).at(0) != first[0]


def test_parts_of_an_epoch() -> None:
    schedule = Schedule(places(300), 100, seed=1)
    assert schedule.steps(0.5) == round(schedule.steps(1.0) / 2)
    assert schedule.steps(1e-9) == 1


def test_packing(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "capture", Recipe([[(3, 5), (2, 4)], [(1, 6)]])))
    batch = load(capture, capture.rows)
    rows = [capture.read(place) for place in capture.rows]
    assert batch.text.tolist() == [token for row in rows for token in row.token_ids.tolist()]
    # the first row's answers are 3 ... 7 and 10 ... 13, so its slots 1 ... 5 and 8 ... 11; its keys end with the last
    assert batch.rows == ((0, 12), (12, 17))
    assert batch.slots.tolist() == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    # the second's answers are 1 ... 6, and the first of them has no slot two before it
    assert [(s.first, s.stop, s.key_row, s.key_first) for s in batch.segments] == [
        (0, 5, 0, 1),
        (5, 9, 0, 8),
        (9, 14, 12, 12),
    ]
    assert batch.num_labels.tolist() == [5, 4, 3, 2, 1, 4, 3, 2, 1, 5, 4, 3, 2, 1]
    assert batch.first_label.tolist() == [*range(9), 10, 11, 12, 13, 14]
    assert batch.positions.tolist() == [*range(12), *range(5)]
    assert torch.equal(batch.features, torch.cat([rows[0].features[:12], rows[1].features[:5]]))
    assert batch.text[batch.key_text].tolist() == rows[0].token_ids[1:13].tolist() + rows[1].token_ids[1:6].tolist()
