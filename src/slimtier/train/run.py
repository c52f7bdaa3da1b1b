"""A training run from its files: opened and checked, begun or resumed, trained, saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from slimtier.drafters.eagle.save import save_draft
from slimtier.errors import ConfigError
from slimtier.provenance import Provenance
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.batches import Schedule, split_rows
from slimtier.train.begin import Target, begin, blank, open_target, plain_state
from slimtier.train.checkpoints import has_states, newest_state
from slimtier.train.config import TrainConfig
from slimtier.train.journal import Journal
from slimtier.train.loop import Data, Trainer, check, run
from slimtier.train.online import Online, open_stream
from slimtier.train.parallel import Ranks, join
from slimtier.train.plot import draw
from slimtier.train.shards import Rows, open_capture

State = dict[str, Any] | None
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to train, from what, to where. `capture`: a directory, or None with `online`, the target to write what is
    learned; `start`: a draft directory to go on from."""

    capture: Path | None
    model: str
    out: Path
    config: TrainConfig
    resume: bool = False
    start: Path | None = None
    device: str = "cpu"
    online: Online | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: `done` of `steps` steps, over so many answer tokens; `draft` is the draft's directory."""

    done: int
    steps: int
    answer_tokens: int
    rows: int
    dropped: Mapping[str, int]
    draft: Path

    @property
    def finished(self) -> bool:
        return self.done == self.steps

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "draft": str(self.draft), "finished": self.finished}


def train(request: Request, say: Callable[[str], None], progress: Progress) -> Outcome:
    """Train a draft; see the modules of this package for how. `say` gets lines for a person, `progress` how much of
    what comes before the first step is done: shards checked, or labels written, of how many."""
    ranks = join()
    state = _former(request, say)
    data = _written(request, state, ranks, progress) if request.online else _captured(request, state, progress)
    if state is not None:
        _check_same(request.config, data.capture, state)
    target = open_target(request.model, data.capture.info)
    if state is None:
        network = begin(target, data.capture, data.split.train, request.config, request.start)
    else:
        network = blank(target, data.capture.info, request.config)
    device = torch.device(request.device)
    trainer = Trainer(network.to(device), data, request.config, ranks, device)
    if state is not None:
        trainer.load_state(state)
    if ranks.first:
        _describe(trainer, say)
    return _run(request, trainer, target)


def _captured(request: Request, state: State, progress: Progress) -> Data:
    """The capture directory, opened; of a run that goes on, the shards that it began with."""
    if request.capture is None:
        raise ConfigError("there is nothing to train on: name a capture directory")
    if request.config.answers != AnswerSettings():
        raise ConfigError("[answers] is for --online: a capture has its answers already; leave it out")
    known = None if state is None else len(state["shards"])
    capture = open_capture(request.capture, only_first=known, progress=progress)
    split = split_rows(capture.rows, request.config.run.validation_rows)
    if not split.train:
        raise ConfigError(f"{request.capture} has only {len(capture.rows)} row(s), and one is held out: capture more")
    part = request.config.optimisation
    return Data(capture, split, Schedule(split.train, part.batch_tokens, part.seed))


def _written(request: Request, state: State, ranks: Ranks, progress: Progress) -> Data:
    """What the target writes from now on."""
    assert request.online is not None
    config = request.config
    if ranks.world > 1:
        raise ConfigError("--online trains in one process: capture first, or leave torchrun out")
    if not config.optimisation.steps:
        raise ConfigError("what is written online has no end: give the run's length, --set optimisation.steps=N")
    position = 0 if state is None else int(state["position"])
    sizes = config.optimisation.batch_tokens, config.run.validation_rows
    return Data(*open_stream(request.online, config.answers, *sizes, position, progress))


def _former(request: Request, say: Callable[[str], None]) -> State:
    """The state to go on from, if it is asked for and there is one."""
    place = request.out / "checkpoints"
    if request.resume:
        return newest_state(place, say)
    if has_states(place):
        raise ConfigError(f"{request.out} holds a run already: go on with --resume, or name another directory")
    return None


def _check_same(config: TrainConfig, capture: Rows, state: Mapping[str, Any]) -> None:
    """ConfigError when the run was begun with another config (what is only noted or shown may differ) or other data."""
    mine, theirs = config.to_dict(), state["config"]
    for table, values in mine.items():
        for key, value in values.items():
            if table != "run" and theirs[table][key] != value:
                raise ConfigError(
                    f"the run was begun with {table}.{key} = {theirs[table][key]}, not {value}: resume it with that, "
                    "or name another directory"
                )
    if list(capture.identity) != state["shards"]:
        raise ConfigError("what is trained on is not what the run was begun with: begin another, with another --out")


def _describe(trainer: Trainer, say: Callable[[str], None]) -> None:
    split = trainer.data.split
    labels = sum(row.labels for row in split.train)
    lost = "".join(f", {count} {reason} dropped" for reason, count in trainer.data.capture.dropped.items())
    say(
        f"{len(split.train)} rows with {labels} labels to train on, {len(split.held_out)} held out{lost}; "
        f"{trainer.steps} steps, {trainer.step} done"
    )


def _run(request: Request, trainer: Trainer, target: Target) -> Outcome:
    draft = request.out / "draft"
    if trainer.ranks.first:
        request.out.mkdir(parents=True, exist_ok=True)

    origin = _origin(request, trainer)

    def save() -> None:
        made = {**origin, "steps": trainer.step, "answer_tokens": trainer.answer_tokens}
        with trainer.averaged():
            network = trainer.network
            save_draft(plain_state(network), network.config, draft, made, target=target.record, replace=True)

    if trainer.step < trainer.steps:
        journal = Journal(request.out, trainer.steps, trainer.step) if trainer.ranks.first else None
        if journal is not None and trainer.step == 0:
            check(trainer, journal)
        run(trainer, request.out, journal, save)
        if journal is not None:
            draw(journal, request.out / "curve.png")
    return Outcome(
        trainer.step,
        trainer.steps,
        trainer.answer_tokens,
        len(trainer.data.split.train),
        trainer.data.capture.dropped,
        draft,
    )


def _origin(request: Request, trainer: Trainer) -> dict[str, Any]:
    """Of what the draft is made, and by what."""
    capture = trainer.data.capture
    return {
        **Provenance.collect(seed=request.config.optimisation.seed).to_dict(),
        "model": request.model,
        "config": request.config.to_dict(),
        "capture": {**asdict(capture.info), "shards": list(capture.identity)},
    }
