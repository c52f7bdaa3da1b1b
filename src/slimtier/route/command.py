"""What `slimtier route` does, once its model is there: a search, or an analysis, checked before it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimtier.engine import torch_threads
from slimtier.errors import ConfigError
from slimtier.files import writing
from slimtier.models.route_file import ModelIdentity, check_route, find_route
from slimtier.provenance import Provenance
from slimtier.registry import DRAFTERS, check_settings
from slimtier.route.calibration import TextPlan, calibrate
from slimtier.route.geometry import analyse
from slimtier.route.judge import Judge
from slimtier.route.plot import draw_geometry, draw_search
from slimtier.route.run import search_route
from slimtier.route.settings import DraftPlan, RoutePlan, read_flat, read_plan
from slimtier.route.study import need_optuna
from slimtier.route.text import text_of, text_of_geometry

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.loading import Loaded
    from slimtier.route.live import Live

Told = tuple[dict[str, Any], str]  # an object to print as JSON, and the same for people


@dataclass(frozen=True, slots=True)
class Searching:
    """A search whose route goes to `out`."""

    plan: RoutePlan
    storage: str
    out: Path

    @classmethod
    def read(cls, given: Mapping[str, Any], storage: str | None, out: Path) -> Searching:
        """Raises ConfigError for settings that cannot be, MissingDependencyError without Optuna."""
        plan = read_plan(given)
        need_optuna()
        out.parent.mkdir(parents=True, exist_ok=True)
        return cls(plan, storage or f"sqlite:///{out.with_suffix('.db').absolute().as_posix()}", out)

    def __call__(self, loaded: Loaded, prompts: Sequence[str], live: Live, threads: int | None = None) -> Told:
        """Search, write the route and its picture."""
        with torch_threads(threads):
            outcome = search_route(loaded, self.plan, prompts, self.storage, live)
        outcome.file.write(self.out)
        _tell(draw_search(outcome, self.out.with_suffix(".png")), live)
        file = outcome.file
        told = {"out": str(self.out), "route": asdict(file.route), "found": file.found}
        told |= {"cost": file.cost, "divergence": file.divergence, "measured": outcome.measured}
        return told, f"{self.out}: {text_of(outcome)}"


@dataclass(frozen=True, slots=True)
class Analysing:
    """An analysis of `route` between a draft and the model; with `out` it is kept, and drawn."""

    text: TextPlan
    draft: DraftPlan
    route: str
    out: Path | None

    @classmethod
    def read(cls, given: Mapping[str, Any], route: str, out: Path | None) -> Analysing:
        """Raises ConfigError for settings or a route that cannot be."""
        text, draft = read_flat(given, TextPlan, DraftPlan)
        check_route(route)
        check_settings(*draft.named())
        return cls(text, draft, route, out)

    def __call__(self, loaded: Loaded, prompts: Sequence[str], live: Live, threads: int | None = None) -> Told:
        """Answer the prompts, then compare the three distributions at every position."""
        found_route, _ = find_route(self.route, loaded.target)
        drafter = self._drafter(loaded, threads)
        with torch_threads(threads):
            live.begin("answering prompts")
            texts = calibrate(loaded, prompts, self.text, live.move)
            judge = Judge(loaded.target, (*texts.searched, *texts.held_out), self.draft.alpha, self.draft.beta)
            live.begin("comparing")
            found = analyse(drafter, judge, found_route, live.move)
        identity = ModelIdentity.of(loaded.target)
        told = {"model": asdict(identity), "route": asdict(found_route), **found.to_dict()}
        if self.out is not None:
            with writing(self.out) as file:
                json.dump({**told, "provenance": Provenance.collect().to_dict()}, file)
                file.write("\n")
            _tell(draw_geometry(found, self.out.with_suffix(".png")), live)
        return told, text_of_geometry(found)

    def _drafter(self, loaded: Loaded, threads: int | None) -> Drafter:
        from slimtier.loading import RunOptions, load

        info = loaded.target.info
        precision = info.precision if info.runtime == "native" else "auto"
        options = RunOptions(info.runtime, precision, threads)
        name, _, settings = self.draft.named()
        return DRAFTERS[name].build(loaded, settings, lambda other: load(other, options))


def _tell(reason: str | None, live: Live) -> None:
    if reason is not None:
        live.say(reason)


def read_command(given: Mapping[str, Any], route: str | None, storage: str | None, out: Path | None) -> Any:
    """The analysis of `route`, or a search where there is none. Raises ConfigError as each of them does."""
    if route is not None:
        if storage is not None:
            raise ConfigError("an analysis keeps no study: leave --storage out")
        return Analysing.read(given, route, out)
    if out is None or out.suffix in ("", ".db", ".png"):
        raise ConfigError("there is no file to write the route to: add --out route.json")
    return Searching.read(given, storage, out)
