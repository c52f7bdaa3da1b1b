"""Who, what and when of a number: the code, the machine and the command that gave it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_GIT_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Provenance:
    """commit: of the source tree the package runs from, None for an installed one; dirty: its tracked files, those
    under results/ apart, differ from the commit. Versions are None for what is not installed. cores: how many were
    used. argv: the command line, with absolute paths cut to their last part. date: UTC, ISO 8601."""

    commit: str | None
    dirty: bool | None
    slimtier: str | None
    torch: str | None
    transformers: str | None
    python: str
    cpu: str
    cores: int
    isa: str | None
    argv: tuple[str, ...]
    seed: int | None
    date: str

    @classmethod
    def collect(
        cls,
        *,
        cores: int | None = None,
        isa: str | None = None,
        seed: int | None = None,
        argv: Sequence[str] | None = None,
    ) -> Provenance:
        """That of this process. cores None: all that it may use; isa: the instruction set of the kernels in use;
        argv None: `sys.argv`."""
        commit, dirty = _commit(Path(__file__).resolve())
        return cls(
            commit=commit,
            dirty=dirty,
            slimtier=version_of("slimtier"),
            torch=version_of("torch"),
            transformers=version_of("transformers"),
            python=platform.python_version(),
            cpu=_cpu(),
            cores=_usable_cores() if cores is None else cores,
            isa=isa,
            argv=tuple(without_place(argument) for argument in (sys.argv if argv is None else argv)),
            seed=seed,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "argv": list(self.argv)}


def version_of(package: str) -> str | None:
    """The version that is installed; None when none is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    """The processor's model as the system names it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
        named = {key.strip(): value.strip() for key, value in fields.items()}.get("model name")
    except OSError:
        named = _output(["sysctl", "-n", "machdep.cpu.brand_string"]) if sys.platform == "darwin" else None
    return named or platform.processor() or platform.machine()


def _commit(file: Path) -> tuple[str | None, bool | None]:
    """The commit of the repository that tracks `file`, and whether the tree differs from it; None, None outside one
    (a package installed below a foreign repository is not tracked by it)."""
    git = ["git", "-C", str(file.parent)]
    tracked = _output([*git, "ls-files", "--error-unmatch", file.name])
    commit = _output([*git, "rev-parse", "HEAD"]) if tracked else None
    if commit is None:
        return None, None
    changes = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"])
    return commit, None if changes is None else bool(changes)


def _output(command: Sequence[str]) -> str | None:
    """What the command prints, stripped; None when it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def without_place(argument: str) -> str:
    """Where a file lies on a machine is no property of a number: /data/x.jsonl -> x.jsonl, a=/data/x -> a=x."""
    option, equals, value = argument.partition("=")
    if equals and not Path(argument).is_absolute():
        return f"{option}={without_place(value)}"
    return Path(argument).name or argument if Path(argument).is_absolute() else argument
