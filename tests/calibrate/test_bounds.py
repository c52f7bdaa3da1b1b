"""The p-values: their formulas naively, how often they err at the boundary, and that they find what is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from slimtier.calibrate.bounds import BET, BOUNDS, Bound, p_value
from slimtier.errors import ConfigError, InputError

Draw = Callable[[np.random.Generator, int, float], np.ndarray]
REPETITIONS = 500


def shares(rng: np.random.Generator, count: int, mean: float) -> np.ndarray:
    """Of 48 tokens, in some prompts many."""
    return rng.binomial(48, rng.beta(0.5, 0.5 * (1 - mean) / mean, count)) / 48


def coins(rng: np.random.Generator, count: int, mean: float) -> np.ndarray:
    return (rng.random(count) < mean).astype(float)


def constant(rng: np.random.Generator, count: int, mean: float) -> np.ndarray:
    return np.full(count, mean)


CASES: list[tuple[Bound, Draw]] = [
    ("betting", shares),
    ("betting", coins),
    ("betting", constant),
    ("hoeffding-bentkus", shares),
    ("hoeffding-bentkus", coins),
    ("binomial", coins),
]


def binomial_cdf(successes: int, count: int, chance: float) -> float:
    return sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(successes + 1))


def naive_hoeffding_bentkus(losses: list[float], epsilon: float) -> float:
    count = len(losses)
    mean = min(sum(losses) / count, epsilon)
    exponent = (1 - mean) * math.log((1 - mean) / (1 - epsilon))
    if mean > 0:
        exponent += mean * math.log(mean / epsilon)
    successes = math.ceil(round(sum(losses), 9))
    return min(1.0, math.exp(-count * exponent), math.e * binomial_cdf(successes, count, epsilon))


def naive_betting(losses: list[float], epsilon: float) -> float:
    """A prompt at a time: the bet is made of what is known, then the loss is seen."""
    seen, deviations = [epsilon / 2], [epsilon**2 / 4]
    capital = best = 1.0
    for loss in losses:
        mean, variance = sum(seen) / len(seen), sum(deviations) / len(deviations)
        bet = (epsilon - mean) / (variance + (epsilon - mean) ** 2) if mean < epsilon else 0.0
        capital *= 1 + min(bet, BET / (1 - epsilon)) * (epsilon - loss)
        best = max(best, capital)
        seen.append(loss)
        deviations.append((loss - sum(seen) / len(seen)) ** 2)
    return 1 / best


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("draw", [shares, coins])
def test_the_formulas(draw: Draw, epsilon: float) -> None:
    rng = np.random.default_rng(1)
    for count in (1, 7, 60, 150):
        for factor in (0.2, 1.0, 2.0):
            losses = draw(rng, count, factor * epsilon)
            given = losses.tolist()
            assert p_value("betting", losses, epsilon) == pytest.approx(naive_betting(given, epsilon), rel=1e-9)
            assert p_value("hoeffding-bentkus", given, epsilon) == pytest.approx(
                naive_hoeffding_bentkus(given, epsilon), rel=1e-9
            )
            if draw is coins:
                exact = binomial_cdf(int(sum(given)), count, epsilon)
                assert p_value("binomial", losses, epsilon) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("bound", "draw"), CASES)
@pytest.mark.parametrize(("count", "epsilon", "delta"), [(60, 0.1, 0.1), (300, 0.05, 0.05)])
def test_a_mean_at_the_boundary_is_certified_at_most_as_often_as_allowed(
    bound: Bound, draw: Draw, count: int, epsilon: float, delta: float
) -> None:
    rng = np.random.default_rng(2)
    wrong = sum(p_value(bound, draw(rng, count, epsilon), epsilon) <= delta for _ in range(REPETITIONS))
    error = math.sqrt(delta * (1 - delta) / REPETITIONS)
    assert wrong / REPETITIONS <= delta + 3 * error


@pytest.mark.parametrize(("bound", "draw"), CASES)
def test_a_mean_well_below_is_found(bound: Bound, draw: Draw) -> None:
    rng = np.random.default_rng(3)
    found = sum(p_value(bound, draw(rng, 300, 0.02), 0.1) <= 0.05 for _ in range(100))
    assert found >= 95


def test_betting_needs_fewer_prompts_where_losses_are_small_and_even() -> None:
    rng = np.random.default_rng(4)
    losses = rng.binomial(48, 0.02, 130) / 48
    assert p_value("betting", losses, 0.05) <= 0.05 < p_value("hoeffding-bentkus", losses, 0.05)


def test_betting_may_be_looked_at_after_every_prompt() -> None:
    """More prompts never take a certificate back: so adding some after a look is allowed."""
    losses = shares(np.random.default_rng(5), 400, 0.03)
    values = [p_value("betting", losses[:count], 0.05) for count in range(1, 401)]
    assert all(later <= earlier for earlier, later in pairwise(values))
    rng = np.random.default_rng(6)
    ever = sum(p_value("betting", coins(rng, 2000, 0.1), 0.1) <= 0.1 for _ in range(REPETITIONS))
    assert ever / REPETITIONS <= 0.1 + 3 * math.sqrt(0.09 / REPETITIONS)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_mean_that_is_seen_above_is_never_certified(bound: Bound) -> None:
    assert p_value(bound, [1.0, 0.0] * 50, 0.3) > 0.9


def test_binomial_refuses_fractions() -> None:
    with pytest.raises(InputError, match="losses of 0 or 1, and these are fractions"):
        p_value("binomial", [0.0, 0.5], 0.1)


@pytest.mark.parametrize("losses", [[], [0.2, 1.1], [-0.1], [math.nan]])
def test_what_is_no_loss_is_refused(losses: list[float]) -> None:
    with pytest.raises(InputError, match="losses from 0 to 1"):
        p_value("betting", losses, 0.1)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, math.nan])
def test_epsilon_is_a_share(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon is"):
        p_value("betting", [0.0], epsilon)
