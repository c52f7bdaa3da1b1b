"""A calibration from beginning to end: gates tried in order, what is certified, the fastest of it written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimtier.calibrate.journal import Journal
from slimtier.calibrate.plan import REREAD
from slimtier.calibrate.testing import certified, prompts_needed
from slimtier.calibrate.trial import Drafting, Trial, Trials, gate_values
from slimtier.errors import ConfigError, InputError
from slimtier.models.route_file import ModelIdentity, RouteFile, find_route
from slimtier.models.slim import SlimTarget
from slimtier.prompts import Prompt, encode_prompt
from slimtier.provenance import Provenance, version_of
from slimtier.tiers import routes_for
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.calibrate.plan import Plan
    from slimtier.loading import Loaded
    from slimtier.models.base import Target

ROWS = ".rows.jsonl"  # added to the result's name: the journal
RECORDED = ("epsilon", "delta", "bound", "loss", "max_prompt_tokens", "max_new_tokens", "seed")


@dataclass(frozen=True, slots=True)
class RouteTrials:
    """A route with its gates: those that were tried in their order, how many of these are certified, and the paper's,
    which were only looked at."""

    name: str
    route: Route
    file: RouteFile | None
    tried: tuple[Trial, ...]
    certified: int
    seen: tuple[Trial, ...]

    def evidence(self) -> list[dict[str, Any]]:
        """A row for every gate."""
        rows = [trial.to_dict(place < self.certified) for place, trial in enumerate([*self.tried, *self.seen])]
        return [{"route": self.name, **row} for row in rows]


def calibrate(
    loaded: Loaded,
    drafting: Drafting,
    route: str | None,
    prompts: Sequence[Prompt],
    plan: Plan,
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RouteFile:
    """Choose the gate for lossy tiers on `route` (None: what suits the target; several, divided by commas: the best of
    them, each tested at its part of delta) by the losses of the prompts, and write the route with it to `out`. Answers
    are kept beside it, and a run that was stopped goes on from there.

    Raises ConfigError for a route that leaves nothing out; InputError where the prompts cannot support the bound, or
    no gate is certified: what would, is said.
    """
    begun, target = Provenance.collect(seed=plan.seed), loaded.target
    names = routes_for(target.info, route)
    routes = [(name, *_route_of(name, target)) for name in names]
    part = replace(plan, delta=plan.delta / len(routes))
    chosen = choose_prompts(prompts, loaded, plan)
    part.check_support(len(chosen))
    done, total = 0, len(routes) * (len(plan.path()) * len(chosen) + len(plan.presets()) * len(chosen[: plan.timed]))

    def answered() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    tested = []
    for name, found, file in routes:
        conditions = _conditions(ModelIdentity.of(target), found, loaded, drafting, plan)
        journal = Journal(out.with_name(out.name + ROWS), conditions)
        trials = Trials(loaded, SlimTarget(target, found), drafting, part, journal, answered)
        tested.append(RouteTrials(name, found, file, *_try(trials, chosen)))
    if not any(one.certified for one in tested):
        raise InputError(" ".join(f"route {one.name}: {refusal(one.tried[0], len(chosen), part)}." for one in tested))
    best, gate = fastest([(one, trial) for one in tested for trial in one.tried[: one.certified]])
    file = best.file or RouteFile(ModelIdentity.of(target), best.route, found={"named": best.name})
    evidence = [row for one in tested for row in one.evidence()]
    found_of = {"route": best.name, **_calibrated(gate, evidence, len(chosen), loaded, drafting, plan)}
    result = replace(file, calibrated={**found_of, "provenance": begun.to_dict()})
    result.write(out)
    return result


def _route_of(name: str, target: Target) -> tuple[Route, RouteFile | None]:
    found, file = find_route(name, target)
    if found.adapter:
        raise ConfigError(f"route {name} has adapters, which cannot be calibrated yet: name a route without")
    if found == Route.full(target.info.num_layers):
        raise ConfigError(f"route {name} is the whole target, which leaves nothing to gain: name another, such as q4")
    return found, file


def _try(trials: Trials, chosen: Sequence[Sequence[int]]) -> tuple[tuple[Trial, ...], int, tuple[Trial, ...]]:
    """The gates tried, in their order, how many of the first are certified, and the paper's."""
    plan, route = trials.plan, trials.slim.route
    reread = REREAD if route.fills_caches else None
    tried: list[Trial] = []

    def p_values() -> Iterator[float]:
        for name, gate in plan.path(reread).items():
            tried.append(trials.run(name, gate, chosen, whole=plan.full))
            yield tried[-1].p_value

    count = certified(list(p_values()) if plan.full else p_values(), plan.delta)
    presets = plan.presets().items() if count else ()
    seen = [trials.run(name, gate, chosen[: plan.timed], whole=True) for name, gate in presets]
    return tuple(tried), count, tuple(seen)


def choose_prompts(prompts: Sequence[Prompt], loaded: Loaded, plan: Plan) -> list[list[int]]:
    """The token ids of `plan.prompts` prompts that are not too long, each text once, in an order drawn by the seed: a
    larger number adds to those of a smaller one."""
    info = loaded.target.info
    longest = min(plan.max_prompt_tokens, info.max_positions - plan.max_new_tokens)
    shuffled = list(prompts)
    random.Random(plan.seed).shuffle(shuffled)
    chosen: dict[tuple[int, ...], None] = {}
    for prompt in shuffled:
        if len(chosen) == plan.prompts:
            break
        ids = encode_prompt(prompt, loaded.tokenizer, info.vocab_size)
        if len(ids) <= longest:
            chosen[tuple(ids)] = None
    if not chosen:
        raise InputError(f"no prompt has at most {longest} tokens: give shorter ones, or a larger max_prompt_tokens")
    return [list(ids) for ids in chosen]


def fastest(trials: Sequence[tuple[RouteTrials, Trial]]) -> tuple[RouteTrials, Trial]:
    """The trial of the greatest measured speed; the safest of those alike."""
    return max(trials, key=lambda one: one[1].speed_ratio or 0.0)


def refusal(first: Trial, count: int, plan: Plan) -> str:
    """Why nothing is certified, when the safest gate is not, and what would change that."""
    needed = prompts_needed(plan.bound, first.losses, plan.epsilon, plan.delta)
    asked = len(first.answers)
    given_up = f"on the first {asked} of {count} prompts, which no others could mend"
    fate = f"on {count} prompts" if asked == count else given_up
    words = f"even the safest gate ({first.name}) has a mean divergence of {first.mean_loss:.4f} {fate}: "
    if needed is None:
        return (
            words + f"no number of prompts certifies {plan.epsilon} at that mean; allow more, or choose a dearer route"
        )
    return (
        words
        + f"p = {first.p_value:.3g} is above {plan.delta}; about {needed} prompts would support {plan.epsilon} at "
        "that mean, or allow more, or choose a dearer route"
    )


def _conditions(
    model: ModelIdentity, route: Route, loaded: Loaded, drafting: Drafting, plan: Plan
) -> Mapping[str, Any]:
    """Under which an answer counts."""
    return {
        "slimtier": version_of("slimtier"),
        "model": {field: getattr(model, field) for field in ModelIdentity.__slots__},
        "route": [*route.sublayers, route.head],
        "runtime": loaded.target.info.runtime,
        "stored": loaded.target.info.stored,
        "drafter": drafting.name,
        "drafts": drafting.identity,
        "drafter_settings": dict(drafting.settings),
        "num_speculative_tokens": drafting.num_speculative_tokens,
        "max_new_tokens": plan.max_new_tokens,
    }


def _calibrated(
    best: Trial,
    evidence: Sequence[Mapping[str, Any]],
    count: int,
    loaded: Loaded,
    drafting: Drafting,
    plan: Plan,
) -> dict[str, Any]:
    """What the route file keeps: the gate, the bound with its evidence, and what both are about."""
    info = loaded.target.info
    return {
        "gate": gate_values(best.gate),
        **{name: getattr(plan, name) for name in RECORDED},
        "p_value": best.p_value,
        "mean_loss": best.mean_loss,
        "speed_ratio": best.speed_ratio,
        "prompts": count,
        "temperature": 0,
        "drafter": drafting.name,
        "drafts": drafting.identity,
        "drafter_settings": dict(drafting.settings),
        "num_speculative_tokens": drafting.num_speculative_tokens,
        "precision": info.precision,
        "runtime": info.runtime,
        "stored": info.stored,
        "grid": list(evidence),
    }
