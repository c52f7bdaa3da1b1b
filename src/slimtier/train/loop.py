"""The training loop: batch, gradients, step; and what is written, shown and kept meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch

from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.train.autocast import autocast
from slimtier.train.batches import Batch, Split, load
from slimtier.train.checkpoints import save_state
from slimtier.train.config import TrainConfig, UnrollPart
from slimtier.train.gradients import Gradients, Report, Unrolling
from slimtier.train.journal import Journal
from slimtier.train.metrics import Validation, validate
from slimtier.train.optimiser import RunningMean, make_optimisers, rate, set_rate
from slimtier.train.parallel import Ranks
from slimtier.train.shards import RowPlace, Rows

_VALIDATION_TOKENS = 2048  # labelled slots at a time


def phase_at(step: int, steps: int, part: UnrollPart) -> Unrolling:
    """How step `step` of `steps` is unrolled: the phases follow each other, each for its share of the run."""
    ends = list(accumulate(share for _, share in part.phases))
    phase = sum(step >= round(steps * end / ends[-1]) for end in ends[:-1])
    return Unrolling(int(part.phases[phase][0]), part.decay, part.later_share)


class Batches(Protocol):
    """Which rows a step takes."""

    @property
    def position(self) -> int:
        """How far what is written online was taken; 0 for what was captured."""

    def at(self, step: int) -> list[RowPlace]: ...
    def steps(self, epochs: float) -> int: ...


@dataclass(frozen=True, slots=True)
class Data:
    """What is trained on."""

    capture: Rows
    split: Split
    schedule: Batches


class Trainer:
    """A network in training. `step`: how many steps are done; `answer_tokens`: over how many."""

    def __init__(
        self, network: EagleNetwork, data: Data, config: TrainConfig, ranks: Ranks, device: torch.device
    ) -> None:
        self.network, self.data, self.config, self.ranks, self.device = network, data, config, ranks, device
        self.optimisers = make_optimisers(network, config.optimisation, config.run.bf16)
        self.mean = RunningMean(network, config.optimisation.ema) if config.optimisation.ema else None
        self.gradients = Gradients(network, config.loss, ranks)
        self.steps = config.optimisation.steps or data.schedule.steps(config.optimisation.epochs)
        self.step = self.answer_tokens = 0

    def batch(self, step: int) -> Batch | None:
        """This process's part of the batch of `step`."""
        places = self.ranks.part(self.data.schedule.at(step))
        return load(self.data.capture, places) if places else None

    def train_step(self, batch: Batch | None) -> dict[str, Any]:
        """One step; its numbers."""
        config = self.config.optimisation
        how = phase_at(self.step, self.steps, self.config.unroll)
        share = rate(self.step, self.steps, config)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        with autocast(self.device, self.config.run.bf16):
            there = None if batch is None else batch.to(self.device)
            report = self.gradients.add(there, how, config.seed * 1_000_003 + self.step)
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.clip or float("inf"))
        set_rate(self.optimisers, share)
        for optimiser in self.optimisers:
            optimiser.step()
        self.step += 1
        self.answer_tokens += report.labels[0] if report.labels else 0
        if self.mean is not None:
            self.mean.update(self.network, self.step)
        return {
            "step": self.step,
            "answer_tokens": self.answer_tokens,
            "lr": config.lr * share,
            **_numbers(report, float(norm)),
        }

    def validation(self) -> Validation:
        """On the held-out rows, with the running mean of the weights if there is one."""
        part = self.config.run
        with self.averaged():
            return validate(self.network, self._validation_batches(), part.validation_steps, bf16=part.bf16)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While this lasts the network has the weights that are saved: the running mean, if there is one."""
        if self.mean is not None:
            self.mean.swap(self.network)
        try:
            yield
        finally:
            if self.mean is not None:
                self.mean.swap(self.network)

    def _validation_batches(self) -> Iterator[Batch]:
        waiting: list[RowPlace] = []
        for place in sorted(self.data.split.validation, key=lambda place: (place.shard, place.start)):
            waiting.append(place)
            if sum(one.labels for one in waiting) > _VALIDATION_TOKENS:
                yield load(self.data.capture, waiting).to(self.device)
                waiting = []
        if waiting:
            yield load(self.data.capture, waiting).to(self.device)

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: what is random depends on the seed and the step alone."""
        return {
            "step": self.step,
            "answer_tokens": self.answer_tokens,
            "steps": self.steps,
            "network": self.network.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "mean": None if self.mean is None else self.mean.weights,
            "config": self.config.to_dict(),
            "shards": list(self.data.capture.identity),
            "position": self.data.schedule.position,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, of a run with the same config and shards."""
        self.step, self.answer_tokens = state["step"], state["answer_tokens"]
        self.network.load_state_dict(state["network"])
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        if self.mean is not None:
            for name, weight in state["mean"].items():
                self.mean.weights[name].copy_(weight)


def _numbers(report: Report, norm: float) -> dict[str, Any]:
    values = asdict(report)
    return {**values, "draft_steps": len(report.labels), "gradient_norm": norm}


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second one ends the process as it would otherwise."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: Any) -> None:
        asked.append(number)
        signal.signal(number, former[signal.Signals(number)])

    for number in former:
        signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def run(trainer: Trainer, directory: Path, journal: Journal | None, save: Callable[[], None]) -> None:
    """Train to the end, or until a signal; either way the state is kept and `save` was called. Of the processes that
    train together one has a journal: it notes and keeps."""
    shown = nullcontext() if journal is None else journal.shown()
    clock = _Clock(trainer.answer_tokens)
    with stop_requests() as stop, shown, closing(batches_of(trainer)) as batches:
        for batch in batches:
            numbers = trainer.train_step(batch)
            stopped = trainer.ranks.any(stop())
            if journal is not None:
                _note(trainer, journal, clock, numbers)
                if stopped or _due(trainer, trainer.config.run.checkpoint_every):
                    save_state(directory / "checkpoints", trainer.step, trainer.state())
                    save()
            if stopped:
                break


def batches_of(trainer: Trainer) -> Generator[Batch | None, None, None]:
    """The batches of the steps that are left. For a GPU the next one is read while this one is trained on; on a CPU the
    reader's threads would take more time from the step than reading does."""
    if trainer.device.type == "cpu":
        while trainer.step < trainer.steps:
            yield trainer.batch(trainer.step)
        return
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(trainer.batch, trainer.step)
        while trainer.step < trainer.steps:
            batch = coming.result()
            if trainer.step + 1 < trainer.steps:
                coming = reader.submit(trainer.batch, trainer.step + 1)
            yield batch


def _due(trainer: Trainer, every: int) -> bool:
    return trainer.step % every == 0 or trainer.step == trainer.steps


def _note(trainer: Trainer, journal: Journal, clock: _Clock, numbers: dict[str, Any]) -> None:
    part = trainer.config.run
    journal.show(trainer.step, _words(numbers, clock.speed(trainer.answer_tokens)))
    if _due(trainer, part.log_every):
        journal.write({**numbers, "tokens_per_s": clock.lap(trainer.answer_tokens)})
    if _due(trainer, part.validate_every):
        check(trainer, journal)
        clock.lap(trainer.answer_tokens)


def check(trainer: Trainer, journal: Journal) -> None:
    """Validate and note it."""
    if trainer.data.split.validation:
        line = {"step": trainer.step, "answer_tokens": trainer.answer_tokens}
        journal.write({**line, "validation": asdict(trainer.validation())})


class _Clock:
    """Answer tokens a second, since the last lap."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.since = tokens, time.monotonic()

    def speed(self, tokens: int) -> float:
        return (tokens - self.tokens) / max(1e-9, time.monotonic() - self.since)

    def lap(self, tokens: int) -> float:
        speed = self.speed(tokens)
        self.tokens, self.since = tokens, time.monotonic()
        return round(speed, 1)


def _words(numbers: dict[str, Any], speed: float) -> str:
    acceptance = " ".join(f"{100 * value:.0f}" for value in numbers["acceptance"])
    return f"{speed:.0f} tok/s · loss {numbers['loss']:.3f} · acceptance {acceptance} %"
