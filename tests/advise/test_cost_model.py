"""The cost model: the paper's table, and the same numbers worked out from seconds."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimtier.advise.cost_model import RoundCost, best_length, break_even, expected_tokens, gain, speed_up

SHARES = st.floats(0.01, 0.99)
SECONDS = st.floats(1e-6, 1.0)


@pytest.mark.parametrize(
    ("ratio", "nu", "expected"), [(1.00, 0.58, 1.09), (1.01, 0.46, 1.13), (0.99, 0.21, 1.18), (0.98, 0.14, 1.18)]
)
def test_table_3(ratio: float, nu: float, expected: float) -> None:
    """SlimSpec, Llama 3.1 8B, κ .25: trimmed 64k, routed, slim d/8, slim d/16."""
    assert round(gain(ratio, 0.25, nu), 2) == expected


@given(SHARES, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 7))
def test_the_gain_is_that_of_tokens_per_second(
    ratio: float, full: float, head: float, body: float, target: float, overhead: float, length: int
) -> None:
    """ρ_TPS and κ of the formula against tokens ÷ seconds of two whole rounds."""
    cost = RoundCost((target,) * 8, body, overhead)
    seconds = [target + overhead + length * (body + one) for one in (full, head)]
    tokens = [3.0, 3.0 * ratio]
    wanted = (tokens[1] / seconds[1]) / (tokens[0] / seconds[0])
    kappa, nu = cost.kappa(length, full), head / full
    assert gain(ratio, kappa, nu) == pytest.approx(wanted)
    assert cost.round_s(length, head) == pytest.approx(seconds[1])
    assert gain(break_even(kappa, nu), kappa, nu) == pytest.approx(1.0)


@given(st.lists(SHARES, max_size=6))
def test_expected_tokens_are_those_of_all_outcomes(acceptances: list[float]) -> None:
    """Every draft token accepted or not by its own coin; a round yields those before the first failure, and one."""
    total = 0.0
    for outcome in itertools.product((True, False), repeat=len(acceptances)):
        chance = math.prod(share if kept else 1 - share for share, kept in zip(acceptances, outcome, strict=True))
        total += chance * (1 + len(list(itertools.takewhile(bool, outcome))))
    assert expected_tokens(acceptances, len(acceptances)) == pytest.approx(total)
    assert expected_tokens(acceptances, 0) == 1.0


def test_speed_up_by_hand() -> None:
    # plain 10 + 1; a round of 2: target 14, body 2 · 1, head 2 · .5, overhead 2: 19 for 1 + .5 + .25 tokens
    cost = RoundCost((10.0, 12.0, 14.0), 1.0, 2.0, 1.0)
    assert cost.plain_s == 11.0
    assert speed_up(cost, 0.5, (0.5, 0.5), 2) == pytest.approx(1.75 * 11 / 19)
    assert speed_up(cost, 0.5, (0.5, 0.5), 2, ratio=0.8) == pytest.approx(0.8 * 1.75 * 11 / 19)
    assert speed_up(cost, 0.5, (0.5, 0.5), 0, ratio=0.8) == 1.0


def test_best_length() -> None:
    free = RoundCost((1.0,) * 7, 0.0)
    assert best_length(free, 0.0, (0.5,) * 6) == 6
    assert best_length(free, 0.0, (0.5,) * 9) == 6  # the target was timed no further
    assert best_length(free, 0.0, (0.5, 0.0, 0.9)) == 1  # the least among equals
    assert best_length(free, 9.0, (0.5,) * 6) == 0  # drafting does not pay
    # 1.9 / 1.5 = 1.27, 2.71 / 2 = 1.36, 3.44 / 2.5 = 1.38, 4.1 / 3 = 1.37
    assert best_length(free, 0.5, (0.9,) * 6) == 3
    # the same with .7 of the tokens: 1.33 / 1.5, 1.9 / 2, 2.41 / 2.5, 2.87 / 3, 3.28 / 3.5: none pays
    assert best_length(free, 0.5, (0.9,) * 6, ratio=0.7) == 0
