"""States of a training run on disk: written beside and renamed, the last two kept, the newest whole one taken.

step-N.pt is the state, step-N.json its mark: written after it, with its sha256. A state without a mark was cut off.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slimtier.errors import ModelFileError
from slimtier.files import replacing

KEPT = 2


def save_state(directory: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state of `step`, then remove all but the last two.

    Raises ModelFileError when the disk does not take it; the states before it stay.
    """
    path = directory / f"step-{step:08d}.pt"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            torch.save(state, part)
            with part.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        with replacing(path.with_suffix(".json")) as mark:
            mark.write_text(json.dumps({"step": step, "sha256": digest}), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # torch tells a full disk as a RuntimeError
        raise ModelFileError(f"cannot write {path}: {error}; free some space and go on with --resume") from error
    for old in sorted(directory.glob("step-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".pt").unlink(missing_ok=True)


def newest_state(directory: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest whole state, or None if there is none; `warn` is told of each that is not whole.

    Raises ModelFileError when there are states and not one is whole.
    """
    paths = sorted(directory.glob("step-*.pt"), reverse=True)
    for path in paths:
        state = _read(path)
        if state is not None:
            return state
        warn(f"{path.name} was cut off or damaged: the one before it is used")
    if paths:
        raise ModelFileError(f"no state in {directory} is whole: remove the directory and train afresh")
    return None


def has_states(directory: Path) -> bool:
    """Whether a run was begun there."""
    return any(directory.glob("step-*.pt"))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        mark = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != mark["sha256"]:
                return None
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError):
        return None
    return state
