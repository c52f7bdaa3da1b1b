"""What a training run is told: a few short tables, read from TOML and `--set table.key=value`, strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slimtier.config import json_or_text, read_dataclass, read_toml
from slimtier.drafters.eagle.config import HeadKind
from slimtier.errors import ConfigError
from slimtier.train.answer_settings import AnswerSettings

LossKind = Literal["kl", "ce", "tv", "lk"]


@dataclass(frozen=True, slots=True)
class DrafterPart:
    """What is trained. rank 0: hidden / 8; size: the rows of a trimmed head (or those a routed one picks);
    intermediate_size 0: the target's; trim_counts: "answers" (VocabTrim) or "prompts" (FR-Spec)."""

    head: HeadKind = "slim"
    rank: int = 0
    size: int = 0
    layers: int = 1
    intermediate_size: int = 0
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    trim_counts: Literal["answers", "prompts"] = "answers"


@dataclass(frozen=True, slots=True)
class InitPart:
    """What it starts from. layer: "token" (fc's regression takes the next token's embedding in, and a head of the
    layer passes that on), "random", or the number of a target layer; ridge: the penalty, relative to the diagonal."""

    layer: str = "token"
    fc: Literal["ridge", "random"] = "ridge"
    head: Literal["activation-svd", "svd", "random"] = "activation-svd"
    ridge: float = 1e-3
    induction_steps: int = 400


@dataclass(frozen=True, slots=True)
class OptimisationPart:
    """How it is trained. steps 0: as many as `epochs` take; batch_tokens: labelled positions a step; warmup and
    final_lr are shares of the steps and of the peak rate; muon_lr is that of the matrices under muon, but for those
    that have a row for each token; ema 0: none."""

    optimiser: Literal["adamw", "muon"] = "adamw"
    lr: float = 4e-4
    muon_lr: float = 4e-3
    epochs: float = 1.0
    steps: int = 0
    batch_tokens: int = 2048
    warmup: float = 0.015
    final_lr: float = 0.0
    clip: float = 0.5
    weight_decay: float = 0.0
    ema: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class UnrollPart:
    """Training-time test. phases: pairs of draft steps and share of the run; decay: weight of step k is decay^k;
    later_share: the part of the positions that go past the first step."""

    phases: tuple[tuple[float, ...], ...] = ((7, 1.0),)
    decay: float = 0.8
    later_share: float = 1.0


@dataclass(frozen=True, slots=True)
class LossPart:
    """candidates 0: the normaliser runs over the whole vocabulary, else over that many tokens; eta: LK-hybrid's;
    router: weight of the router's own loss (routed heads)."""

    kind: LossKind = "kl"
    candidates: int = 0
    eta: float = 3.0
    router: float = 0.1


@dataclass(frozen=True, slots=True)
class RunPart:
    """What happens beside, in steps. validation_steps: draft steps that are validated; bf16: autocast, where
    there are units for it."""

    log_every: int = 10
    validate_every: int = 200
    checkpoint_every: int = 100
    validation_rows: int = 64
    validation_steps: int = 5
    bf16: bool = True


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run; `answers`: how the target answers online."""

    drafter: DrafterPart = field(default_factory=DrafterPart)
    init: InitPart = field(default_factory=InitPart)
    optimisation: OptimisationPart = field(default_factory=OptimisationPart)
    unroll: UnrollPart = field(default_factory=UnrollPart)
    loss: LossPart = field(default_factory=LossPart)
    run: RunPart = field(default_factory=RunPart)
    answers: AnswerSettings = field(default_factory=AnswerSettings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_config(path: Path | None, pairs: Sequence[str] = ()) -> TrainConfig:
    """The config of a TOML file (None: the defaults), changed by "table.key=value" pairs (a value is JSON, else text).

    Raises ConfigError: no such file, no TOML, an unknown table or key (naming the nearest), a value that cannot be.
    """
    tables = {} if path is None else read_toml(path)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        table, dot, key = name.partition(".")
        if not (equals and dot and key):
            raise ConfigError(f"--set {pair!r} is not TABLE.KEY=VALUE: write for example optimisation.lr=1e-3")
        if not isinstance(tables.setdefault(table, {}), dict):
            raise ConfigError(f"the config's {table} is {tables[table]!r}: make it a table")
        tables[table][key] = _value(name, value)
    return config_of(tables)


def config_of(tables: Mapping[str, Any]) -> TrainConfig:
    """A config from nested plain values, checked."""
    config = read_dataclass(TrainConfig, tables, "the training config")
    values = asdict(config)
    for name, (low, high) in _RANGES.items():
        table, key = name.split(".")
        if not low <= values[table][key] <= high:
            limit = f"{low} or more" if high == _ANY else f"{low} to {high}"
            raise ConfigError(f"{name} is {values[table][key]}: give {limit}")
    for phase in config.unroll.phases or ((),):
        if len(phase) != 2 or phase[0] < 1 or phase[0] != int(phase[0]) or not phase[1] > 0:
            raise ConfigError(
                f"unroll.phases has {list(phase)}: give pairs of draft steps and share, such as [[1, 0.8], [3, 0.2]]"
            )
    _refuse_contradictions(config)
    return config


def _value(name: str, text: str) -> Any:
    return text if name == "init.layer" else json_or_text(text)  # a number there is a name


def _refuse_contradictions(config: TrainConfig) -> None:
    drafter, init = config.drafter, config.init
    if drafter.head in ("trimmed", "routed") and drafter.size < 1:
        raise ConfigError(f"a {drafter.head} head needs drafter.size: give the number of rows, such as 8192")
    if drafter.norm_before_fc and drafter.fc_norm:
        raise ConfigError("drafter.norm_before_fc and drafter.fc_norm exclude each other: keep one")
    if init.fc == "ridge" and (drafter.norm_before_fc or drafter.fc_norm):
        raise ConfigError("init.fc ridge is solved on features without a norm: set init.fc to random, or drop the norm")
    if init.layer == "token" and init.fc != "ridge":
        raise ConfigError("init.layer token is solved together with fc: set init.layer to random, or init.fc to ridge")
    if init.layer not in ("token", "random") and not init.layer.isdecimal():
        raise ConfigError(f"init.layer is {init.layer!r}: give token, random, or the number of a layer of the target")


_ANY = float("inf")
_RANGES: dict[str, tuple[float, float]] = {
    "drafter.rank": (0, _ANY), "drafter.size": (0, _ANY), "drafter.layers": (1, _ANY),
    "drafter.intermediate_size": (0, _ANY), "init.ridge": (0, _ANY), "init.induction_steps": (0, _ANY),
    "optimisation.lr": (0, _ANY), "optimisation.muon_lr": (0, _ANY), "optimisation.epochs": (0, _ANY),
    "optimisation.steps": (0, _ANY), "optimisation.batch_tokens": (1, _ANY), "optimisation.warmup": (0, 1),
    "optimisation.final_lr": (0, 1), "optimisation.clip": (0, _ANY), "optimisation.weight_decay": (0, _ANY),
    "optimisation.ema": (0, 0.99999), "unroll.decay": (0, 1), "unroll.later_share": (0, 1),
    "loss.candidates": (0, _ANY), "loss.eta": (0, _ANY), "loss.router": (0, _ANY), "run.log_every": (1, _ANY),
    "run.validate_every": (1, _ANY), "run.checkpoint_every": (1, _ANY), "run.validation_rows": (1, _ANY),
    "run.validation_steps": (1, _ANY),
}  # fmt: skip
