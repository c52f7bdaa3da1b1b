"""From scores to routes within a budget."""

from __future__ import annotations

import random

import pytest

from slimtier.errors import ConfigError
from slimtier.route.cost import StepCost, TimeBudget
from slimtier.route.space import SkipBudget, Space, read_ladder, words_of
from slimtier.types import Route


def test_the_k_highest_scores_are_skipped() -> None:
    """SWIFT's rule, written with a sort."""
    space = Space(6)
    for seed in range(20):
        scores = [random.Random(f"{seed}/{unit}").random() for unit in range(space.size)]
        count = 1 + seed % 7
        highest = sorted(range(space.size), key=lambda unit: -scores[unit])[:count]
        levels = space.levels(scores, SkipBudget(count))
        assert [unit for unit, level in enumerate(levels) if level] == sorted(highest)


def test_units_are_sublayers_of_the_inner_layers() -> None:
    space = Space(4)
    assert space.size == len(space.units) == 4
    route = space.route((1, 0, 0, 1))
    assert route == Route(("full", "skip", "full", "full"), ("full", "full", "skip", "full"))


def test_units_can_be_layers() -> None:
    space = Space(4, granularity="layer", keep=0)
    assert space.size == len(space.units) == 4
    assert space.route((0, 1, 0, 0)) == Route.skipping(4, [1])


def test_what_is_kept_stays_at_the_dearest_action() -> None:
    space = Space(4, ("q8", "q4"), head="q8")
    assert space.route((0, 1, 1, 0)) == Route(("q8", "q8", "q4", "q8"), ("q8", "q4", "q8", "q8"), "q8")


def test_a_ladder_of_four_goes_down_as_far_as_the_time_wants() -> None:
    """Attention saves 1, 2, 4 of 100 at q8, q4, skip and an MLP twice that: four units of the highest scores."""
    saved = {f"{kind}:{action}": by * factor
             for kind, factor in (("attention", 1.0), ("mlp", 2.0))
             for action, by in (("q8", 1.0), ("q4", 2.0), ("skip", 4.0))}  # fmt: skip
    cost = StepCost(100.0, saved)
    space = Space(4, ("full", "q8", "q4", "skip"))
    scores = [0.9, 0.1, 0.5, 0.0]
    for limit in (0.99, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.78, 0.76):
        levels = space.levels(scores, TimeBudget(space, cost, limit))
        assert cost.ratio(space.route(levels)) <= limit
        assert sorted(levels, reverse=True) == [levels[unit] for unit in (0, 2, 1, 3)]
    assert space.levels(scores, TimeBudget(space, cost, 0.98)) == (2, 0, 0, 0)
    assert space.levels(scores, TimeBudget(space, cost, 0.76)) == (3, 3, 3, 3)


def test_a_route_is_no_cheaper_than_it_must_be() -> None:
    space = Space(6)
    cost = StepCost(100.0, {"attention:skip": 3.0, "mlp:skip": 5.0})
    budget = TimeBudget(space, cost, 0.9)
    for seed in range(10):
        levels = space.levels([random.Random(f"{seed}/{unit}").random() for unit in range(space.size)], budget)
        assert budget.met(levels)
        for unit, level in enumerate(levels):
            if level:
                assert cost.ratio(space.route(tuple(0 if one == unit else x for one, x in enumerate(levels)))) > 0.85


def test_a_budget_that_cannot_be_met() -> None:
    space = Space(4)
    cost = StepCost(100.0, {"attention:skip": 3.0, "mlp:skip": 5.0})
    with pytest.raises(ConfigError, match="the budget is not met"):
        space.levels([0.5] * 4, TimeBudget(space, cost, 0.5))


def test_a_route_in_words() -> None:
    route = Route(("full", "skip", "q8", "skip"), ("full", "full", "q4", "full"), "q8")
    assert words_of(route) == "attention skip 1,3; attention q8 2; MLP q4 2; head q8"
    assert words_of(Route.full(3)) == "the whole target"


def test_coordinates() -> None:
    assert Space(4, ("full", "q4", "skip")).coordinates((0, 1, 2, 0)) == [0.0, 0.5, 1.0, 0.0]


def test_ladders() -> None:
    assert read_ladder(["skip", "full", "q8"]) == ("full", "q8", "skip")
    with pytest.raises(ConfigError, match="actions holds 'q5'"):
        read_ladder(["q5", "full"])
    with pytest.raises(ConfigError, match="give two or more"):
        read_ladder(["skip", "skip"])


def test_no_layer_left_to_search() -> None:
    with pytest.raises(ConfigError, match="keep=2 leaves none to search"):
        Space(4, keep=2)
