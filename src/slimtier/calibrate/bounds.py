"""p-values of "the mean loss is above epsilon", from the losses of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from slimtier.errors import ConfigError, InputError, MissingDependencyError

Bound = Literal["betting", "hoeffding-bentkus", "binomial"]
Losses = Sequence[float] | np.ndarray
BET = 0.95  # the largest share of the capital that one prompt can lose
_ROUNDING = 1e-9  # of a sum of shares


def p_value(bound: Bound, losses: Losses, epsilon: float) -> float:
    """The p-value of H0: E[loss] > epsilon, from losses in [0, 1] of independent prompts of one distribution.

    Under H0 it is at most delta with probability delta at most, for every delta. Raises InputError for losses that are
    none, and by `binomial` for such that are not 0 or 1; ConfigError for an epsilon outside (0, 1).
    """
    given = np.asarray(losses, dtype=np.float64)
    if not 0.0 < epsilon < 1.0:
        raise ConfigError(f"epsilon is {epsilon!r}: give a number above 0 and below 1")
    if not given.size or not bool(np.all((given >= 0.0) & (given <= 1.0))):
        raise InputError("a bound is on losses from 0 to 1, one or more: these are none")
    return BOUNDS[bound](given, epsilon)


def hoeffding_bentkus(losses: np.ndarray, epsilon: float) -> float:
    """min(exp(-n h(min(R, epsilon), epsilon)), e P(Bin(n, epsilon) <= ceil(n R))), R the mean of n losses and
    h(a, b) = a ln(a/b) + (1 - a) ln((1 - a)/(1 - b)): Hoeffding's inequality in its tight form and Bentkus's (Bates et
    al. 2021, Distribution-free, risk-controlling prediction sets; as p-values Angelopoulos et al. 2021, Learn then
    test). It knows of the losses only their mean, so it is loose where they are spread little."""
    count, mean = len(losses), float(losses.mean())
    hoeffding = math.exp(-count * _divergence(min(mean, epsilon), epsilon))
    bentkus = math.e * _binomial_cdf(math.ceil(float(losses.sum()) - _ROUNDING), count, epsilon)
    return min(1.0, hoeffding, bentkus)


def betting(losses: np.ndarray, epsilon: float) -> float:
    """1 / max_t K_t, K_t = Π_{i<=t} (1 + λ_i (epsilon - X_i)): the capital of who bets λ_i that prompt i loses less
    than epsilon (Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting: of their hedged
    capital the side that bets downwards). Under H0 it is a supermartingale, so it exceeds 1/delta at any
    time with probability delta at most (Ville's inequality), whatever λ_i makes of the losses before i.

    λ_i = (epsilon - m) / (v + (epsilon - m)²), clipped to [0, BET / (1 - epsilon)], with m and v mean and variance of
    the losses before (aGRAPA, their approximation of Kelly's bet) and of one loss of epsilon / 2 before the first.
    It looks at the spread of the losses, and more prompts may be added after a look at the result.
    """
    before = np.arange(1, len(losses) + 1)  # losses that are known, the assumed one included
    means = (epsilon / 2 + np.cumsum(losses) - losses) / before
    later = (epsilon / 2 + np.cumsum(losses)) / (before + 1)
    squares = (losses - later) ** 2
    variances = (epsilon**2 / 4 + np.cumsum(squares) - squares) / before
    gaps = epsilon - means
    bets = np.clip(gaps / (variances + gaps**2), 0.0, BET / (1.0 - epsilon))
    log_capital = np.cumsum(np.log1p(bets * (epsilon - losses)))
    return min(1.0, math.exp(-float(log_capital.max())))


def binomial(losses: np.ndarray, epsilon: float) -> float:
    """P(Bin(n, epsilon) <= losses): exact, and for losses of 0 or 1 only."""
    if not bool(np.all((losses == 0.0) | (losses == 1.0))):
        raise InputError("the binomial bound is for losses of 0 or 1, and these are fractions: use betting")
    return min(1.0, _binomial_cdf(int(losses.sum()), len(losses), epsilon))


BOUNDS: Mapping[Bound, Callable[[np.ndarray, float], float]] = {
    "betting": betting,
    "hoeffding-bentkus": hoeffding_bentkus,
    "binomial": binomial,
}


def _divergence(a: float, b: float) -> float:
    """From a coin of chance b to one of chance a <= b, in nats."""
    inner = a * math.log(a / b) if a > 0.0 else 0.0
    return inner + (1.0 - a) * math.log((1.0 - a) / (1.0 - b))


def _binomial_cdf(successes: int, count: int, chance: float) -> float:
    try:
        from scipy.stats import binom
    except ImportError as error:
        raise MissingDependencyError("this bound needs scipy: pip install scipy") from error
    return float(binom.cdf(successes, count, chance))
