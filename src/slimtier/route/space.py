"""The routes that are searched: which sublayers may change, to what, and how much must go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from slimtier.errors import ConfigError
from slimtier.types import ACTIONS, Action, Route

Granularity = Literal["sublayer", "layer"]
Levels = tuple[int, ...]  # for each unit a place on the ladder, 0 the dearest


class Budget(Protocol):
    """What a route may cost."""

    def met(self, levels: Levels) -> bool: ...


@dataclass(frozen=True, slots=True)
class Space:
    """Units that are decided together: the attention and the MLP of a layer each on its own, or a layer as a whole.
    `ladder`: the actions to choose from, the dearest first; `keep`: layers at either end that stay at the dearest, as
    in SWIFT; `head`: what every route does with the head."""

    num_layers: int
    ladder: tuple[Action, ...] = ("full", "skip")
    granularity: Granularity = "sublayer"
    keep: int = 1
    head: Action = "full"

    def __post_init__(self) -> None:
        if self.num_layers <= 2 * self.keep:
            raise ConfigError(
                f"the model has {self.num_layers} layers and keep={self.keep} leaves none to search: lower it"
            )

    @property
    def units(self) -> list[tuple[int, ...]]:
        """For each unit its sublayers, numbered as in `Route.sublayers`."""
        layers = range(self.keep, self.num_layers - self.keep)
        if self.granularity == "layer":
            return [(2 * layer, 2 * layer + 1) for layer in layers]
        return [(2 * layer + half,) for layer in layers for half in (0, 1)]

    @property
    def size(self) -> int:
        inner = self.num_layers - 2 * self.keep
        return inner if self.granularity == "layer" else 2 * inner

    @property
    def cheapest(self) -> int:
        return len(self.ladder) - 1

    def route(self, levels: Sequence[int]) -> Route:
        """The route that does ladder[levels[i]] with unit i."""
        sublayers = [self.ladder[0]] * (2 * self.num_layers)
        for unit, level in zip(self.units, levels, strict=True):
            for sublayer in unit:
                sublayers[sublayer] = self.ladder[level]
        return Route(tuple(sublayers[0::2]), tuple(sublayers[1::2]), self.head)

    def coordinates(self, levels: Sequence[int]) -> list[float]:
        """Levels as numbers in 0 … 1."""
        return [level / self.cheapest for level in levels]

    def levels(self, scores: Sequence[float], budget: Budget) -> Levels:
        """The dearest route within the budget that the scores, in 0 … 1, give: all units begin on the ladder's top and
        take steps down it, those of high scores first, until the budget is met. A unit of score s takes its step from
        level j to j + 1 at the time j − s · (steps of the ladder). For skip or full that is SWIFT's rule: the k units
        of the highest scores are skipped. The earlier unit goes first where times are equal.

        Raises ConfigError when the budget is not met with every unit at the cheapest.
        """
        steps = sorted(
            (j - score * self.cheapest, j, unit) for unit, score in enumerate(scores) for j in range(self.cheapest)
        )
        levels = [0] * self.size
        for _, _, unit in steps:
            if budget.met(tuple(levels)):
                break
            levels[unit] += 1
        if not budget.met(tuple(levels)):
            raise ConfigError("the budget is not met with every unit at the cheapest action: allow more, or add skip")
        return tuple(levels)


def read_ladder(actions: Sequence[str]) -> tuple[Action, ...]:
    """The actions, the dearest first. Raises ConfigError for one that is unknown or alone."""
    wrong = next((action for action in actions if action not in ACTIONS), None)
    if wrong is not None:
        raise ConfigError(f"actions holds {wrong!r}: choose from {', '.join(ACTIONS)}")
    ladder = tuple(action for action in ACTIONS if action in actions)
    if len(ladder) < 2:
        raise ConfigError(f"actions is {','.join(actions)}: give two or more of {', '.join(ACTIONS)}")
    return ladder


def words_of(route: Route) -> str:
    """What the route does otherwise than the target: "attention skip 3,7; MLP q4 8; head q8"."""
    parts = []
    for kind, actions in (("attention", route.attention), ("MLP", route.mlp)):
        for action in ("skip", "q4", "q8"):
            layers = [str(layer) for layer, one in enumerate(actions) if one == action]
            parts += [f"{kind} {action} {','.join(layers)}"] if layers else []
    parts += [f"head {route.head}"] if route.head != "full" else []
    return "; ".join(parts) or "the whole target"


@dataclass(frozen=True, slots=True)
class SkipBudget:
    """Exactly `count` units at the ladder's end, where it has two rungs."""

    count: int

    def met(self, levels: Levels) -> bool:
        return sum(level > 0 for level in levels) >= self.count
