"""Throughput by batch size: turns, and the schedule that follows."""

from __future__ import annotations

from typing import Any

import pytest

from slimtier.bench.scaling import check_scaling, schedule
from slimtier.bench.statistics import speeds
from slimtier.bench.systems import parse_system
from slimtier.errors import ConfigError, InputError

SYSTEMS = [
    parse_system(text)
    for text in ("slimtier:drafter=none", "slimtier", "slimtier:drafter=ngram,num_speculative_tokens=2",
                 "slimtier:drafter=ngram,num_speculative_tokens=5", "vllm")
]  # fmt: skip
PLAIN, AUTO, TWO, FIVE, VLLM = (system.name for system in SYSTEMS)


def rows(table: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    return [
        {"system": name, "batch": batch, "repeat": repeat, "tokens_per_s": speed + repeat}
        for name, mine in table.items()
        for batch, speed in mine.items()
        for repeat in range(3)
    ]


def test_a_batch_goes_to_the_fastest_number_of_tokens() -> None:
    table = {
        PLAIN: {1: 10.0, 4: 30, 16: 90, 64: 99},
        TWO: {1: 14, 4: 35, 16: 80, 64: 90},
        FIVE: {1: 20, 4: 36, 16: 60, 64: 61},
    }
    measured = rows({**table, AUTO: {1: 500, 4: 500, 16: 500, 64: 500}, VLLM: {1: 900}})
    assert schedule(SYSTEMS, measured) == [[1, 15, 5], [16, 64, 0]]
    assert speeds(measured)[FIVE] == {1: 21, 4: 37, 16: 61, 64: 62}
    table[TWO][4] = 50
    assert schedule(SYSTEMS, rows(table)) == [[1, 3, 5], [4, 15, 2], [16, 64, 0]]


def test_without_a_number_of_tokens_there_is_no_schedule() -> None:
    assert schedule(SYSTEMS, rows({PLAIN: {1: 10.0}, AUTO: {1: 20.0}})) is None
    failed = [{"system": FIVE, "batch": 1, "repeat": 0, "error": "bang"}]
    assert schedule(SYSTEMS, [*rows({PLAIN: {1: 10.0}}), *failed]) is None


def test_what_cannot_be_scaled() -> None:
    check_scaling(SYSTEMS, (1, 8), 8)
    with pytest.raises(InputError, match="a batch of 8 needs as many prompts, and there are 7"):
        check_scaling(SYSTEMS, (1, 8), 7)
    with pytest.raises(ConfigError, match="flashspec answers one prompt at a time"):
        check_scaling([parse_system("flashspec")], (1,), 1)
