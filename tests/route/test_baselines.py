"""What a search must beat."""

from __future__ import annotations

import pytest

from slimtier.errors import ConfigError
from slimtier.route.baselines import first_n, greedy, greedy_evaluations, of_random, uniform
from slimtier.route.cost import StepCost, TimeBudget
from slimtier.route.objective import Divergence
from slimtier.route.space import Levels, SkipBudget, Space
from slimtier.route.study import Tried

SPACE = Space(6)  # 8 units
COST = StepCost(100.0, {"attention:skip": 5.0, "mlp:skip": 10.0})


def test_uniform_is_spread_evenly() -> None:
    assert uniform(SPACE, SkipBudget(2)) == (0, 0, 1, 0, 0, 0, 1, 0)
    assert uniform(SPACE, SkipBudget(8)) == (1,) * 8
    for count in range(1, 9):
        assert sum(uniform(SPACE, SkipBudget(count))) == count


def test_first_n_is_early_exit() -> None:
    assert first_n(SPACE, SkipBudget(3)) == (0, 0, 0, 0, 0, 1, 1, 1)
    assert SPACE.route(first_n(SPACE, SkipBudget(4))).attention == ("full", "full", "full", "skip", "skip", "full")


def test_a_budget_of_time_is_met_by_as_few_as_it_takes() -> None:
    budget = TimeBudget(SPACE, COST, 0.8)
    assert first_n(SPACE, budget) == (0, 0, 0, 0, 0, 1, 1, 1)  # 10 + 5 + 10
    assert budget.met(uniform(SPACE, budget))
    with pytest.raises(ConfigError, match="the budget is not met"):
        first_n(SPACE, TimeBudget(SPACE, COST, 0.3))
    with pytest.raises(ConfigError, match="the budget is not met"):
        uniform(SPACE, TimeBudget(SPACE, COST, 0.3))


def pairs(levels: Levels) -> float:
    """Unit i costs i alone, but 0 and 1 together cost 10 more."""
    return sum(i * level for i, level in enumerate(levels)) + 10.0 * levels[0] * levels[1]


def test_greedy_once_looks_at_each_unit_alone() -> None:
    assert greedy(SPACE, SkipBudget(2), "once", pairs) == ((1, 1, 0, 0, 0, 0, 0, 0), 8)


def test_greedy_steps_looks_at_what_is_gone() -> None:
    told: list[int] = []
    found = greedy(SPACE, SkipBudget(3), "steps", pairs, lambda: told.append(1))
    assert found == ((1, 0, 1, 1, 0, 0, 0, 0), 8 + 7 + 6)
    assert len(told) == 21


def test_how_many_evaluations_greedy_takes() -> None:
    assert greedy_evaluations(SPACE, 3, "steps") == 21
    assert greedy_evaluations(SPACE, 3, "once") == 9  # and the route itself
    assert greedy_evaluations(SPACE, 3, "none") == 0


def test_random_trials_are_those_of_the_search() -> None:
    trials = [
        Tried(number, (0,), Divergence(value, 0.0, 0.0, 0.0), proposal, value)
        for number, (value, proposal) in enumerate([(3.0, "random"), (1.0, "bayesian"), (2.0, "random"), (0.5, "swap")])
    ]
    assert of_random(trials) == {"mean": 2.5, "best": 2.0, "trials": 2}
    assert of_random(trials[1:2]) == {}
