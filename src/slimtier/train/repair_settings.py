"""What a repair is told: one flat table, read from TOML and `--set key=value`, strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slimtier.config import read_dataclass, read_toml
from slimtier.errors import ConfigError

Matrix = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BESIDE = ("log_every", "checkpoint_every")  # may differ when a run goes on


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """targets: the matrices of the kept sublayers that get an adapter; batch_tokens: answer tokens a step;
    row_tokens: a longer row is cut there; warmup: share of the steps over which the rate rises; clip 0: none;
    log_every, checkpoint_every: in steps."""

    rank: int = 16
    targets: tuple[Matrix, ...] = ("o_proj", "down_proj")
    steps: int = 500
    lr: float = 1e-3
    batch_tokens: int = 512
    row_tokens: int = 1024
    warmup: float = 0.03
    clip: float = 1.0
    validation_rows: int = 32
    log_every: int = 10
    checkpoint_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rank", "steps", "batch_tokens", "validation_rows", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.row_tokens < 2:
            raise ConfigError(f"row_tokens is {self.row_tokens}: give 2 or more")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"targets is {list(self.targets)}: name at least one matrix, each once")
        for name, most in (("lr", 1.0), ("warmup", 1.0), ("clip", float("inf"))):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number from 0 to {most:g}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_repair(path: Path | None, given: Mapping[str, Any]) -> RepairSettings:
    """The settings of a TOML file (None: the defaults), changed by those `given`.

    Raises ConfigError: no such file, no TOML, an unknown name (naming the nearest), a value that cannot be.
    """
    values = {} if path is None else read_toml(path)
    return read_dataclass(RepairSettings, {**values, **given}, "the repair")
