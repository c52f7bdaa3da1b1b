"""From a model and settings to a route file: text, costs, baselines, search, and what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from slimtier.kernels import core
from slimtier.models.route_file import ModelIdentity, RouteFile
from slimtier.provenance import Provenance
from slimtier.route.baselines import Baseline, first_n, greedy, greedy_evaluations, of_random, uniform
from slimtier.route.calibration import Text, Texts, calibrate
from slimtier.route.cost import StepCost, TimeBudget, measure_cost, skipped_share, step_seconds
from slimtier.route.judge import Judge
from slimtier.route.objective import Divergence
from slimtier.route.search import Search
from slimtier.route.space import Budget, SkipBudget, Space
from slimtier.route.study import Store, Tried, study_name
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.loading import Loaded
    from slimtier.models.base import Target
    from slimtier.route.live import Live
    from slimtier.route.settings import RoutePlan
    from slimtier.route.space import Levels

CHECK_REPEATS = 15  # of the measurement that the prediction is held to


@dataclass(frozen=True, slots=True)
class Bench:
    """All that a search works with."""

    target: Target
    identity: ModelIdentity
    plan: RoutePlan
    texts: Texts
    judge: Judge
    space: Space
    budget: Budget
    cost: StepCost
    store: Store

    @property
    def longest(self) -> Text:
        return max(self.texts.searched, key=lambda text: len(text.token_ids))

    def value(self, divergence: Divergence) -> float:
        found: float = getattr(divergence, self.plan.search.objective)
        return found

    def value_of(self, levels: Levels) -> float:
        """Of a route beside the trials, which is kept in the study."""
        return self.value(self.store.evaluated(levels, lambda: self.judge(self.space.route(levels))))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The file, and what it was chosen from. `measured`: for each row of the table its divergences, searched and held
    out, and its predicted time."""

    file: RouteFile
    trials: tuple[Tried, ...]
    baselines: tuple[Baseline, ...]
    measured: Mapping[str, Mapping[str, Any]]
    bench: Bench


def search_route(loaded: Loaded, plan: RoutePlan, prompts: Sequence[str], storage: str, live: Live) -> Outcome:
    """Search a route of the target, or go on with a search in `storage`, an Optuna URL, where all is kept as it is
    found."""
    bench = prepare(loaded, plan, prompts, storage, live)
    _foretell(bench, live)
    try:
        baselines = _simple_baselines(bench)
        trials = _searched(bench, live)
        baselines += _greedy_baseline(bench, live)
    except KeyboardInterrupt:
        live.say(f"stopped with {len(bench.store.finished())} trials in {storage}: the same command goes on")
        raise
    return _conclude(bench, trials, baselines, live)


def prepare(loaded: Loaded, plan: RoutePlan, prompts: Sequence[str], storage: str, live: Live) -> Bench:
    """The text, the judge, the budget and the study."""
    target = loaded.target
    space = plan.space.space(target.info)
    live.begin("answering prompts")
    texts = calibrate(loaded, prompts, plan.text, live.move)
    live.begin("reading the answers")
    judge = Judge(target, texts.searched, plan.search.alpha, plan.search.beta)
    identity = ModelIdentity.of(target)
    model = {name: getattr(identity, name) for name in ModelIdentity.__slots__}
    parts = {"model": model, "runtime": target.info.runtime, "text": texts.digest, "settings": plan.of_the_study}
    store = Store(study_name(parts), storage)
    live.begin("timing steps")
    longest = max(texts.searched, key=lambda text: len(text.token_ids))
    measure = partial(measure_cost, target, longest, space.ladder, space.head, live.move)
    cost = StepCost(**store.cost(lambda: measure().to_dict()))
    limit = plan.space.time
    budget: Budget
    budget = SkipBudget(plan.space.count(space.size)) if limit is None else TimeBudget(space, cost, limit)
    return Bench(target, identity, plan, texts, judge, space, budget, cost, store)


def _foretell(bench: Bench, live: Live) -> None:
    """Say how long it will take, before it does."""
    plan, store = bench.plan.search, bench.store
    levels = uniform(bench.space, bench.budget)
    begun = time.perf_counter()
    found = bench.judge(bench.space.route(levels))
    seconds = time.perf_counter() - begun
    store.evaluated(levels, lambda: found)
    done = len(store.finished())
    left, more = max(0, plan.trials - done), greedy_evaluations(bench.space, _moved(bench), plan.greedy)
    kept = f" ({done} trials are there already)" if done else ""
    minutes = max(1, math.ceil((left + more) * seconds / 60))
    live.say(
        f"{bench.judge.positions} positions of {len(bench.texts.searched)} answers; an evaluation takes "
        f"{seconds:.1f} s: {left} trials{kept} and {more} evaluations for the greedy baseline, about "
        f"{minutes} min and the sampler's own time"
    )


def _moved(bench: Bench) -> int:
    """How many units the budget wants moved."""
    return sum(level > 0 for level in uniform(bench.space, bench.budget))


def _searched(bench: Bench, live: Live) -> list[Tried]:
    objective = bench.plan.search.objective
    search = Search(bench.space, bench.budget, bench.plan.search, bench.store, bench.judge)
    live.begin("searching")

    def moved(done: int, total: int, best: float) -> None:
        live.move(done, total, f"searching, {objective} {best:.4g} so far")

    return search.run(moved)


def _simple_baselines(bench: Bench) -> list[Baseline]:
    space, budget = bench.space, bench.budget
    found = []
    for name, make in (("uniform", uniform), ("first_n", first_n)):
        levels = make(space, budget)
        found.append(Baseline(name, space.route(levels), bench.value_of(levels)))
    return found


def _greedy_baseline(bench: Bench, live: Live) -> list[Baseline]:
    mode = bench.plan.search.greedy
    if mode == "none":
        return []
    live.begin("greedy baseline")
    total, done = greedy_evaluations(bench.space, _moved(bench), mode), 0

    def moved() -> None:
        nonlocal done
        done += 1
        live.move(done, max(done, total))

    levels, taken = greedy(bench.space, bench.budget, mode, bench.value_of, moved)
    return [Baseline(f"greedy_{mode}", bench.space.route(levels), bench.value_of(levels), taken + 1)]


def _conclude(bench: Bench, trials: Sequence[Tried], baselines: Sequence[Baseline], live: Live) -> Outcome:
    """The best of all routes within the budget, whoever found it, and how it does on text that was held out."""
    best, plan = trials[0], bench.plan
    searched = Baseline("search", bench.space.route(best.levels), best.value, len(trials))
    chosen = min((searched, *baselines), key=lambda one: one.value)  # the search, where they are equal
    compared = (searched, *baselines, *_precisions(bench))
    live.begin("measuring what was found")
    measured = _measured(bench, compared)
    cost = {
        "skipped": skipped_share(chosen.route),
        "time_predicted": bench.cost.ratio(chosen.route),
        "time_measured": _time_ratio(bench, chosen.route),
    }
    found = {
        "method": chosen.name if chosen is not searched else f"search ({best.proposal})",
        "objective": plan.search.objective,
        "value": chosen.value,
        "trials": len(trials),
        "settings": {**asdict(plan.space), **asdict(plan.search), **asdict(plan.text)},
        "study": bench.store.study.study_name,
        "searched": searched.to_dict(),
        "baselines": {one.name: one.to_dict() for one in baselines},
        "random": of_random(trials),
        "held_out": {name: row["held_out"] for name, row in measured.items()},
        "step_cost": bench.cost.to_dict(),
    }
    divergence = measured[chosen.name]["searched"]
    isa = core.isa() if bench.target.info.exact else None
    provenance = Provenance.collect(isa=isa, seed=plan.search.seed).to_dict()
    file = RouteFile(bench.identity, chosen.route, found, cost, divergence, provenance=provenance)
    return Outcome(file, tuple(trials), tuple(baselines), measured, bench)


def _precisions(bench: Bench) -> list[Baseline]:
    """The whole target at each low precision that the search may use, whatever that costs."""
    layers = bench.target.info.num_layers
    routes = [(action, Route.at(layers, action)) for action in bench.space.ladder if action in ("q8", "q4")]
    return [Baseline(action, route, bench.value(bench.judge(route))) for action, route in routes]


def _measured(bench: Bench, compared: Sequence[Baseline]) -> dict[str, dict[str, Any]]:
    """What each route is on the text searched on and on that held out."""
    plan = bench.plan.search
    texts = bench.texts.held_out
    held_out = Judge(bench.target, texts, plan.alpha, plan.beta) if texts else None
    return {
        one.name: {
            "searched": bench.judge(one.route).to_dict(),
            "held_out": held_out(one.route).to_dict() if held_out else {},
            "time": bench.cost.ratio(one.route),
            "evaluations": one.evaluations,
        }
        for one in compared
    }


def _time_ratio(bench: Bench, route: Route) -> float:
    full = Route.full(bench.target.info.num_layers)
    whole, slim = step_seconds(bench.target, [full, route], bench.longest, CHECK_REPEATS)
    return slim / whole
