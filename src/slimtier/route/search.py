"""DIMR: random search, and every θ-th proposal a Bayesian sampler's from all that was observed (VIA-SD, equations 12
and 13). Optuna keeps the trials; see `study.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimtier.route.objective import Divergence
from slimtier.route.proposals import bayesian_scores, random_scores

if TYPE_CHECKING:
    from slimtier.route.settings import SearchPlan
    from slimtier.route.space import Budget, Levels, Space
    from slimtier.route.study import Store, Tried
    from slimtier.types import Route

_SPREAD, _WIDER = 0.1, 1.25  # of the noise that makes a known proposal a new one


@dataclass(frozen=True, slots=True)
class Search:
    """Trials in `store` until there are as many as the plan wants; `judge` says how far a route is from the target."""

    space: Space
    budget: Budget
    plan: SearchPlan
    store: Store
    judge: Callable[[Route], Divergence]

    def run(self, progress: Callable[[int, int, float], None] = lambda done, total, best: None) -> list[Tried]:
        """All trials of the study, the best first. What other processes add meanwhile counts. `progress` is told of
        trials done and wanted, and of the lowest value."""
        while len(finished := self.store.finished()) < self.plan.trials:
            self.store.trial(lambda number: self.propose(number, self.store.finished()), self._judge, self.value)
            finished = self.store.finished()
            progress(len(finished), self.plan.trials, min(one.value for one in finished))
        return sorted(finished, key=lambda one: (one.value, one.number))

    def value(self, divergence: Divergence) -> float:
        found: float = getattr(divergence, self.plan.objective)
        return found

    def propose(self, number: int, finished: Sequence[Tried]) -> tuple[Levels, str]:
        """The route of trial `number`, from 1, and where it comes from. A Bayesian one that is known already is moved
        to a new one nearby: evaluating it again would tell nothing."""
        plan, space = self.plan, self.space
        draw = random.Random(f"{plan.seed}/{number}/kind")
        if finished and plan.sampler != "none" and plan.theta and number % plan.theta == 0:
            values = {one.levels: one.value for one in finished}
            observed = [(space.coordinates(levels), value) for levels, value in values.items()]
            scores = bayesian_scores(observed, plan.sampler, plan.seed, number)
            return self._new(scores, values, draw), "bayesian"
        if finished and draw.random() < plan.swaps:
            best = min(finished, key=lambda one: (one.value, one.number)).levels
            return self._new(_swapped(space.coordinates(best), draw), {one.levels for one in finished}, draw), "swap"
        return space.levels(random_scores(space.size, plan.seed, number), self.budget), "random"

    def _new(self, scores: Sequence[float], known: object, draw: random.Random) -> Levels:
        levels, spread = self.space.levels(scores, self.budget), _SPREAD
        assert isinstance(known, (dict, set))
        while levels in known and spread < 100.0:
            levels = self.space.levels([score + spread * draw.random() for score in scores], self.budget)
            spread *= _WIDER
        return levels

    def _judge(self, levels: Levels) -> Divergence:
        return self.judge(self.space.route(levels))


def _swapped(coordinates: Sequence[float], draw: random.Random) -> list[float]:
    """The scores of a route with two units that differ exchanged."""
    scores = list(coordinates)
    one = draw.randrange(len(scores))
    others = [place for place, score in enumerate(scores) if score != scores[one]]
    other = draw.choice(others) if others else one
    scores[one], scores[other] = scores[other], scores[one]
    return scores
