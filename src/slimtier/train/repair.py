"""Repair of a route: adapters trained by KL to the target's captured distributions, kept as a directory that names the
adapted route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from slimtier.errors import ConfigError
from slimtier.loading import RunOptions, load
from slimtier.models.adapters import write_adapters
from slimtier.models.route_file import ModelIdentity, described, find_route
from slimtier.provenance import Provenance
from slimtier.train.batches import Schedule, Split, split_rows
from slimtier.train.begin import open_target
from slimtier.train.checkpoints import has_states, newest_state, save_state
from slimtier.train.config import OptimisationPart
from slimtier.train.journal import Journal
from slimtier.train.loop import stop_requests
from slimtier.train.optimiser import rate
from slimtier.train.repair_settings import BESIDE, RepairSettings
from slimtier.train.route_adapter import (
    AdaptedModel,
    Closeness,
    adapted_matrices,
    as_adapters,
    measure,
    start_factors,
)
from slimtier.train.shards import Capture, RowPlace, open_capture

_BETAS = (0.9, 0.95)
State = dict[str, Any] | None
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """What to repair, with what, to where. `route`: as `find_route` takes it, without adapters; `precision`: the
    target's, whose route the adapters are for."""

    capture: Path
    model: str
    route: str
    out: Path
    settings: RepairSettings
    precision: str = "auto"
    device: str = "cpu"
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Repaired:
    """What came of it: `done` of `steps` steps; how close the route is to the target on held-out rows before and after
    (None: stopped before the end); `directory`: what `--route` takes."""

    done: int
    steps: int
    before: Closeness
    after: Closeness | None
    directory: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "directory": str(self.directory)}


class Training:
    """The adapters of a route in training. `step`: how many steps are done."""

    def __init__(
        self, model: AdaptedModel, capture: Capture, split: Split, settings: RepairSettings, state: State = None
    ) -> None:
        """`state`: of a run to go on with. Raises ConfigError for that of another run, naming the difference."""
        self.model, self.capture, self.split, self.settings = model, capture, split, settings
        self.schedule = Schedule(split.train, settings.batch_tokens, settings.seed)
        self.weights = [part for parts in model.factors.values() for part in parts]
        self.optimiser = torch.optim.AdamW(self.weights, lr=settings.lr, betas=_BETAS, weight_decay=0.0)
        self._curve = OptimisationPart(warmup=settings.warmup, final_lr=0.0)
        self.step = 0
        if state is not None:
            self._load(state)
        self.before = self.held_out() if state is None else Closeness(**state["before"])

    def held_out(self) -> Closeness:
        """On the rows that are not trained on."""
        return measure(self.model, self.capture, self.split.validation, self.settings.row_tokens)

    def train_step(self) -> tuple[Closeness, float]:
        """One step: how close its rows were before it, and the gradient's norm. A row at a time: nothing is padded."""
        settings, places = self.settings, self.schedule.at(self.step)
        total = sum(_tokens(place, settings.row_tokens) for place in places)
        self.optimiser.zero_grad()
        parts = []
        for place in places:
            if _tokens(place, settings.row_tokens):
                parts.append(self.model.compare(self.capture, place, settings.row_tokens))
                (parts[-1].loss.sum() / total).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.weights, settings.clip or float("inf"))
        for group in self.optimiser.param_groups:
            group["lr"] = settings.lr * rate(self.step, settings.steps, self._curve)
        self.optimiser.step()
        self.step += 1
        return Closeness.of(parts), float(norm)

    def state(self) -> dict[str, Any]:
        """All that a run that goes on needs: what is random depends on the seed and the step alone."""
        return {
            "step": self.step,
            "weights": [part.detach() for part in self.weights],
            "optimiser": self.optimiser.state_dict(),
            "about": self.about(),
            "before": asdict(self.before),
        }

    def about(self) -> dict[str, Any]:
        """What two runs must have in common for one to go on with the other."""
        settings = {name: value for name, value in self.settings.to_dict().items() if name not in BESIDE}
        route = self.model.route
        return {**settings, "route": [*route.sublayers, route.head], "shards": list(self.capture.identity)}

    @torch.no_grad()
    def _load(self, state: dict[str, Any]) -> None:
        for name, value in self.about().items():
            if state["about"].get(name) != value:
                other = f"{name} = {state['about'].get(name)}"
                words = f"another {name}" if name in ("route", "shards") else other
                raise ConfigError(f"the run was begun with {words}: resume it with that, or name another --out")
        self.step = state["step"]
        for weight, kept in zip(self.weights, state["weights"], strict=True):
            weight.copy_(kept)
        self.optimiser.load_state_dict(state["optimiser"])


def _tokens(place: RowPlace, most: int) -> int:
    """Answer tokens of the row that are compared."""
    return sum(max(min(stop, most) - max(first, 1), 0) for first, stop in place.segments)


def repair(request: Repair, say: Say, progress: Callable[[int, int], None] | None = None) -> Repaired:
    """Train adapters for the route. A signal stops it cleanly, `resume` goes on to the same result; `out` keeps
    checkpoints/, metrics.jsonl and, once it is done, route/, the directory that `--route` takes.

    Raises ConfigError for a route with nothing to repair or that does not fit, a run that is there already, and one
    that is resumed with other settings.
    """
    place = request.out / "checkpoints"
    if not request.resume and has_states(place):
        raise ConfigError(f"{request.out} holds a run already: go on with --resume, or name another directory")
    state = newest_state(place, say) if request.resume else None
    capture = open_capture(request.capture, progress=progress)
    target = open_target(request.model, capture.info)
    loaded = load(request.model, RunOptions("native", request.precision))
    identity = ModelIdentity.of(loaded.target)
    route, _ = find_route(request.route, loaded.target)
    del loaded
    settings, device = request.settings, torch.device(request.device)
    names = adapted_matrices(route, settings.targets)
    if route.adapter or "skip" not in route.sublayers or not names:
        raise ConfigError(f"route {request.route} has nothing to repair: name one that skips some layers, as skip:0.1")
    factors = start_factors(target.weights, names, settings.rank, settings.seed, device)
    split = _split(capture, settings)
    say(f"{len(names)} adapters of rank {settings.rank}; {len(split.train)} rows, {len(split.held_out)} held out")
    training = Training(AdaptedModel(target.weights, route, factors, device), capture, split, settings, state)
    say(f"held out, before: {training.before}")
    return _run(request, training, described(identity, route), say)


def _split(capture: Capture, settings: RepairSettings) -> Split:
    """Rows with something to compare, and at least one on each side."""
    rows = [row for row in capture.rows if _tokens(row, settings.row_tokens)]
    split = split_rows(rows, settings.validation_rows)
    if not split.train or not split.validation:
        raise ConfigError(f"{capture.directory} has {len(rows)} usable row(s), too few to hold one out: capture more")
    return split


def _run(request: Repair, training: Training, about: dict[str, Any], say: Say) -> Repaired:
    settings, directory = request.settings, request.out / "route"
    request.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(request.out, settings.steps, training.step)
    if training.step == 0:
        journal.write({"step": 0, "held_out": asdict(training.before)})
    with stop_requests() as stop, journal.shown():
        while training.step < settings.steps:
            close, norm = training.train_step()
            journal.show(training.step, f"loss {close.kl:.4f} · top-1 {100 * close.top1:.1f} %")
            last, stopped = training.step == settings.steps, stop()
            if training.step % settings.log_every == 0 or last:
                journal.write({"step": training.step, "gradient_norm": norm, **asdict(close)})
            if training.step % settings.checkpoint_every == 0 or last or stopped:
                save_state(request.out / "checkpoints", training.step, training.state())
            if stopped and not last:
                return Repaired(training.step, settings.steps, training.before, None, directory)
    after = training.held_out()
    say(f"held out, after:  {after}")
    journal.write({"step": training.step, "held_out": asdict(after)})
    made = {
        **Provenance.collect(seed=settings.seed).to_dict(),
        "settings": settings.to_dict(),
        "capture": {**asdict(training.capture.info), "shards": list(training.capture.identity)},
        "held_out": {"before": asdict(training.before), "after": asdict(after)},
    }
    write_adapters(directory, as_adapters(training.model.factors), about, made, replace=True)
    return Repaired(training.step, settings.steps, training.before, after, directory)
