"""What a search must beat: simple routes within the same budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from slimtier.errors import ConfigError
from slimtier.route.space import words_of
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.route.settings import Greedy
    from slimtier.route.space import Budget, Levels, Space
    from slimtier.route.study import Tried

Value = Callable[["Levels"], float]  # what is made small


@dataclass(frozen=True, slots=True)
class Baseline:
    """A route that was not searched, its value, and how many evaluations it took."""

    name: str
    route: Route
    value: float
    evaluations: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"value": self.value, "evaluations": self.evaluations, "route": words_of(self.route)}


def uniform(space: Space, budget: Budget) -> Levels:
    """Evenly spaced units at the cheapest action, as few as the budget wants."""
    for count in range(1, space.size + 1):
        chosen = {(2 * i + 1) * space.size // (2 * count) for i in range(count)}
        levels = tuple(space.cheapest if unit in chosen else 0 for unit in range(space.size))
        if budget.met(levels):
            return levels
    raise ConfigError("the budget is not met with every unit at the cheapest action: allow more, or add skip")


def first_n(space: Space, budget: Budget) -> Levels:
    """The first layers, and the last ones that are always kept: early exit. Units from the back go to the cheapest
    action until the budget is met."""
    return _in_order(space, budget, range(space.size - 1, -1, -1))


def of_random(trials: Sequence[Tried]) -> dict[str, float]:
    """Mean and best of the random proposals among a search's own trials: what as many draws alone would have found."""
    values = [one.value for one in trials if one.proposal == "random"]
    return {"mean": fmean(values), "best": min(values), "trials": len(values)} if values else {}


def greedy_evaluations(space: Space, count: int, mode: Greedy) -> int:
    """How many evaluations `greedy` takes at most, to move `count` units."""
    if mode == "steps":
        return sum(space.size - moved for moved in range(count))
    return space.size + 1 if mode == "once" else 0


def greedy(
    space: Space, budget: Budget, mode: Greedy, value: Value, progress: Callable[[], None] = lambda: None
) -> tuple[Levels, int]:
    """Greedy removal, and how many evaluations it took. once: units in the order of what each alone costs. steps: again
    and again the unit that costs least beside those that are gone already, which takes size · count evaluations."""
    taken = 0

    def cost(units: frozenset[int]) -> float:
        nonlocal taken
        taken += 1
        found = value(_at(space, units))
        progress()
        return found

    if mode == "once":
        alone = [cost(frozenset((unit,))) for unit in range(space.size)]
        return _in_order(space, budget, sorted(range(space.size), key=lambda unit: alone[unit])), taken
    gone: frozenset[int] = frozenset()
    while not budget.met(_at(space, gone)) and len(gone) < space.size:
        left = [unit for unit in range(space.size) if unit not in gone]
        gone |= {min(left, key=lambda unit: cost(gone | {unit}))}
    return _at(space, gone), taken


def _in_order(space: Space, budget: Budget, order: Sequence[int]) -> Levels:
    for count in range(len(order) + 1):
        levels = _at(space, order[:count])
        if budget.met(levels):
            return levels
    raise ConfigError("the budget is not met with every unit at the cheapest action: allow more, or add skip")


def _at(space: Space, units: Sequence[int] | frozenset[int]) -> Levels:
    chosen = set(units)
    return tuple(space.cheapest if unit in chosen else 0 for unit in range(space.size))
