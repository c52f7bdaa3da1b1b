"""What is certified, and how many prompts that takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from slimtier.calibrate.bounds import BET, BOUNDS, Bound, p_value
from slimtier.calibrate.testing import certified, filled, hopeless, prompts_needed


def test_certified_up_to_the_first_that_fails() -> None:
    assert certified([0.01, 0.05, 0.2, 0.001], 0.05) == 2
    assert certified([0.06, 0.0], 0.05) == 0
    assert certified([0.0, 0.0], 0.05) == 2
    assert certified([], 0.05) == 0


def test_nothing_is_asked_for_after_a_failure() -> None:
    asked = []

    def values() -> Iterator[float]:
        for value in (0.01, 0.9, 0.01):
            asked.append(value)
            yield value

    assert certified(values(), 0.05) == 1
    assert asked == [0.01, 0.9]


def test_no_setting_above_the_bound_is_certified_but_in_a_share_delta_of_samples() -> None:
    """Ten settings, the last seven above the bound, all judged on the same prompts."""
    rng, epsilon, delta, wrong = np.random.default_rng(0), 0.1, 0.1, 0
    means = np.concatenate([[0.01, 0.02, 0.03], np.linspace(0.1, 0.13, 7)])
    for _ in range(500):
        draws = rng.random(200)
        count = certified((p_value("binomial", draws < mean, epsilon) for mean in means), delta)
        assert count >= 1
        wrong += count > 3
    assert wrong / 500 <= delta + 3 * math.sqrt(delta * (1 - delta) / 500)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.02, 0.05), (0.1, 0.05), (0.3, 0.01)])
def test_the_fewest_prompts_without_any_loss(bound: Bound, epsilon: float, delta: float) -> None:
    # Hoeffding in its tight form and the binomial: (1 - ε)^n <= δ; betting: (1 + BET ε / (1 - ε))^n >= 1 / δ
    growth = math.log1p(BET * epsilon / (1 - epsilon)) if bound == "betting" else -math.log(1 - epsilon)
    expected = math.ceil(math.log(1 / delta) / growth)
    assert prompts_needed(bound, [0.0], epsilon, delta) == expected
    assert p_value(bound, np.zeros(expected), epsilon) <= delta < p_value(bound, np.zeros(expected - 1), epsilon)


@pytest.mark.parametrize("bound", ["betting", "hoeffding-bentkus"])
def test_the_prompts_needed_are_enough_and_not_far_too_many(bound: Bound) -> None:
    losses = np.random.default_rng(1).binomial(48, 0.02, 50) / 48
    needed = prompts_needed(bound, losses, 0.05, 0.05)
    assert needed is not None
    assert p_value(bound, np.resize(losses, needed), 0.05) <= 0.05
    assert p_value(bound, np.resize(losses, needed * 9 // 10), 0.05) > 0.05


def test_more_loss_needs_more_prompts() -> None:
    needed = [prompts_needed("betting", [mean, mean, 0.0], 0.1, 0.05) for mean in (0.0, 0.05, 0.1, 0.14)]
    assert needed == sorted(needed)
    assert len(set(needed)) == 4


def test_none_are_enough_at_or_above_the_bound() -> None:
    assert prompts_needed("betting", [0.1, 0.1], 0.1, 0.05) is None
    assert prompts_needed("hoeffding-bentkus", [0.3, 0.1], 0.1, 0.05) is None


def test_a_gap_too_small_to_show_is_given_up() -> None:
    assert prompts_needed("hoeffding-bentkus", [0.1 - 1e-6], 0.1, 0.05) is None


def test_hopeless_means_that_no_losses_of_the_others_help() -> None:
    assert filled([0.5], 3).tolist() == [0.5, 0.0, 0.0]
    for bound in ("betting", "hoeffding-bentkus"):
        assert hopeless(bound, [0.0] * 5, 28, 0.1, 0.05)  # too few prompts even without loss
        assert not hopeless(bound, [0.0] * 5, 35, 0.1, 0.05)
        assert hopeless(bound, [1.0] * 5, 35, 0.1, 0.05)
        assert hopeless(bound, [1.0], 35, 0.1, 0.05)
        assert not hopeless(bound, [1.0], 100, 0.1, 0.05)
