"""What a search is told, read strictly from one flat mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from slimtier.config import read_dataclass, refuse_unknown
from slimtier.errors import ConfigError
from slimtier.route.calibration import TextPlan
from slimtier.route.objective import Objective, check_thresholds
from slimtier.route.proposals import Sampler
from slimtier.route.space import Granularity, Space, read_ladder
from slimtier.types import Action

if TYPE_CHECKING:
    from slimtier.models.base import TargetInfo

Greedy = Literal["none", "once", "steps"]
RATIO = 0.45  # VIA-SD's share of skipped layers


@dataclass(frozen=True, slots=True)
class SpacePlan:
    """Which routes there are, and one budget: `ratio`, the share of the searchable units that is skipped (0.45 where
    neither is given), or `time`, at most so much of the whole target's time a step."""

    ratio: float | None = None
    time: float | None = None
    actions: tuple[str, ...] = ("skip", "full")
    granularity: Granularity = "sublayer"
    keep: int = 1
    head: Action = "full"

    def __post_init__(self) -> None:
        if self.ratio is not None and self.time is not None:
            raise ConfigError("ratio and time are two budgets: keep one")
        for name in ("ratio", "time"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < 1.0:
                raise ConfigError(f"{name} is {value}: give a number above 0 and below 1")
        if self.keep < 0:
            raise ConfigError(f"keep is {self.keep}: give the number of layers at either end that stay, 0 or more")
        if self.head == "skip":
            raise ConfigError("the head cannot be skipped: give full, q8 or q4")
        if len(read_ladder(self.actions)) > 2 and self.time is None:
            raise ConfigError("more than two actions need the budget time, such as time=0.6")

    def space(self, info: TargetInfo) -> Space:
        """Raises ConfigError for what the model does not have."""
        ladder = read_ladder(self.actions)
        low = {*ladder, self.head} & {"q4", "q8"}
        if low and not info.exact:
            raise ConfigError(f"{' and '.join(sorted(low))} run on the native CPU kernels only: choose skip and full")
        return Space(info.num_layers, ladder, self.granularity, self.keep, self.head)

    def count(self, size: int) -> int:
        """How many of `size` units are skipped; at least one."""
        return max(1, round((RATIO if self.ratio is None else self.ratio) * size))


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How it is searched. `objective`: what is made small; `alpha`, `beta`: thresholds of r; every `theta`-th proposal
    is the Bayesian sampler's (0: none), a share `swaps` of the others is the best route with one unit exchanged.
    `greedy`: how the greedy baseline removes units: by what each costs alone, or step by step, which takes long."""

    trials: int = 200
    objective: Objective = "r"
    alpha: float = 0.5
    beta: float = 0.5
    sampler: Sampler = "gp"
    theta: int = 10
    swaps: float = 0.0
    seed: int = 0
    greedy: Greedy = "once"

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"trials is {self.trials}: give 1 or more")
        if self.theta < 0:
            raise ConfigError(f"theta is {self.theta}: give 1 or more, or 0 for no Bayesian proposals")
        if not 0.0 <= self.swaps <= 1.0:
            raise ConfigError(f"swaps is {self.swaps}: give a share from 0 to 1")
        check_thresholds(self.alpha, self.beta)


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """All that `slimtier route` can be told."""

    text: TextPlan = field(default_factory=TextPlan)
    space: SpacePlan = field(default_factory=SpacePlan)
    search: SearchPlan = field(default_factory=SearchPlan)

    @property
    def of_the_study(self) -> dict[str, Any]:
        """What a study's results depend on: all but how many trials it has, and what it is compared with."""
        rest = {name: value for name, value in asdict(self.search).items() if name not in ("trials", "greedy")}
        return {**asdict(self.space), **rest}


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Whose distributions an analysis begins with: an EAGLE-3 `draft` (a directory; auto: the shipped one), or a
    smaller model."""

    draft: str = "auto"
    draft_model: str | None = None
    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self) -> None:
        check_thresholds(self.alpha, self.beta)

    def named(self) -> tuple[str, str, dict[str, str]]:
        """Drafter, verifier and settings, as the registry knows them."""
        if self.draft_model is not None:
            return "draft_model", "lossless", {"draft_model": self.draft_model}
        return "eagle3", "lossless", {"draft": self.draft}


def read_flat(given: Mapping[str, Any], *kinds: type[Any]) -> list[Any]:
    """One of each of the dataclasses, from settings whose names tell which they belong to."""
    names = [[one.name for one in fields(kind)] for kind in kinds]
    refuse_unknown(given, [name for of in names for name in of], "setting")
    values = dict(given)
    if isinstance(given.get("actions"), str):
        values["actions"] = [action.strip() for action in given["actions"].split(",")]
    return [
        read_dataclass(kind, {name: values[name] for name in of if name in values}, "--set")
        for kind, of in zip(kinds, names, strict=True)
    ]


def read_plan(given: Mapping[str, Any]) -> RoutePlan:
    """From flat settings. Raises ConfigError for an unknown name or a value that cannot be."""
    return RoutePlan(*read_flat(given, TextPlan, SpacePlan, SearchPlan))
