"""What a benchmark is told: a TOML file, and the command line over it, read strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slimtier.bench.systems import OURS, TYPES, System, read_system
from slimtier.bench.tasks import TASKS, task_of
from slimtier.config import read_dataclass, read_toml, refuse_unknown
from slimtier.errors import ConfigError
from slimtier.kernels import available_threads
from slimtier.models.aliases import DEFAULT_MODEL
from slimtier.provenance import without_place

OWN_TASK = "own"


@dataclass(frozen=True, slots=True)
class Settings:
    """`tasks`: names, each NAME or NAME=FILE; `data`: the directory of the tasks' files; `items`: prompts of each
    category (0: all), drawn by `seed`; `categories`: only these. `max_prompt_tokens`: longer prompts are left out.
    `repeats`: how often each prompt (or batch) is answered by each system. `batches`: of --scaling. `threads` 0: all
    cores."""

    model: str = DEFAULT_MODEL
    tasks: tuple[str, ...] = (OWN_TASK,)
    data: str = ""
    items: int = 3
    categories: tuple[str, ...] = ()
    max_new_tokens: int = 128
    max_prompt_tokens: int = 1500
    temperature: float = 0.0
    repeats: int = 1
    seed: int = 0
    threads: int = 0
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """The settings, the systems (the first is the baseline), and the interpreters of peers, by type."""

    settings: Settings
    systems: tuple[System, ...]
    python: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; of a place on this machine only the last part."""
        tasks = [f"{name}={Path(path).name}" if path else name for name, path in map(split_task, self.settings.tasks)]
        plain = asdict(self.settings) | {"data": Path(self.settings.data).name, "tasks": tasks}
        plain["model"] = without_place(self.settings.model)
        return {**plain, "systems": {system.name: system.to_dict() for system in self.systems}}


QUICK = {"items": 2, "max_new_tokens": 64, "repeats": 2}  # about three minutes


def default_systems() -> tuple[System, ...]:
    """Ours, plain and with the default drafter, and the peers that most people run."""
    ours = [{"name": "slimtier plain", "drafter": "none"}, {"name": "slimtier"}]
    return tuple(read_system(given) for given in (*ours, {"type": "transformers"}, {"type": "llama.cpp"}))


def read_config(path: Path | None, over: Mapping[str, Any], quick: bool = False) -> BenchConfig:
    """The settings of a TOML file with those of `over` in their place, checked; `quick`: what neither says is small.

    Raises ConfigError when the file cannot be read, and for what it says that cannot be.
    """
    given = (QUICK if quick else {}) | (read_toml(path) if path is not None else {}) | dict(over)
    where = str(path) if path is not None else "the command line"
    systems, python = given.pop("systems", None), given.pop("python", {})
    chosen = default_systems() if systems is None else _systems(systems, where)
    settings = read_dataclass(Settings, given, where)
    settings = replace(settings, threads=settings.threads or available_threads())
    config = BenchConfig(settings, chosen, _interpreters(python))
    _check(config)
    return config


def split_task(text: str) -> tuple[str, str]:
    """NAME or NAME=FILE."""
    name, _, path = text.partition("=")
    return name, path


def _systems(given: Any, where: str) -> tuple[System, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigError(f"{where}: systems is {given!r}: give at least one [[systems]] table")
    systems = [one if isinstance(one, System) else read_system(one) for one in given]
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: two systems are called {name!r}: give each a name of its own")
    return tuple(systems)


def _interpreters(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"python is {given!r}: give a table of interpreters by type of system")
    peers = [name for name in TYPES if name != OURS]
    refuse_unknown(given, (*peers, "peers"), "type of system under python")
    return {name: str(Path(str(path)).expanduser()) for name, path in given.items()}


def _check(config: BenchConfig) -> None:
    """What can be known before anything is loaded."""
    settings = config.settings
    for text in settings.tasks:
        task_of(split_task(text)[0])
    if not settings.tasks:
        raise ConfigError(f"no task is named: choose of {', '.join(TASKS)}")
    least = {"items": 0, "max_new_tokens": 1, "max_prompt_tokens": 1, "repeats": 1, "threads": 0, "seed": 0}
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ConfigError(f"{name} is {getattr(settings, name)}: give {bound} or more")
    if not settings.batches or min(settings.batches) < 1:
        raise ConfigError(f"batches is {list(settings.batches)}: give sizes of 1 or more")
    if not 0 <= settings.temperature < float("inf"):
        raise ConfigError(f"temperature is {settings.temperature}: give 0 (the most probable token) or more")
    if settings.temperature > 0:
        for system in config.systems:
            if not system.kind.samples:
                raise ConfigError(f"{system.name} takes the most probable token only: leave it out, or temperature")
