"""What to try next: DIMR's mixture of random search and Bayesian optimisation (VIA-SD, equation 13).

A proposal is a score in [0, 1] for each unit of the space; `Space.levels` turns scores into a route within the budget,
as SWIFT does for a fixed ratio. What was observed goes to the Bayesian sampler as the routes themselves, a unit's level
being its coordinate, so that scores which give the same route are the same point to it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

Sampler = Literal["gp", "tpe", "none"]
Observed = tuple[Sequence[float], float]  # a route's levels as coordinates in 0 … 1, and its cost


def random_scores(count: int, seed: int, number: int) -> list[float]:
    """Uniform scores of trial `number`, the same for every process."""
    draw = random.Random(f"{seed}/{number}")
    return [draw.random() for _ in range(count)]


def bayesian_scores(observed: Sequence[Observed], sampler: Sampler, seed: int, number: int) -> list[float]:
    """What Optuna's sampler asks for after all that was observed, which may not be empty."""
    import optuna

    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        study = optuna.create_study(sampler=_sampler(sampler, random.Random(f"{seed}/{number}").getrandbits(31)))
    names = [f"u{i:04d}" for i in range(len(observed[0][0]))]
    space: dict[str, Any] = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in names}
    for levels, cost in observed:
        params = dict(zip(names, levels, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=cost))
    asked = study.ask(space)
    return [asked.params[name] for name in names]


def _sampler(kind: Sampler, seed: int) -> BaseSampler:
    import optuna

    if kind == "tpe":
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=0)
    return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True, n_startup_trials=0)
