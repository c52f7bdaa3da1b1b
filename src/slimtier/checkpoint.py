"""Directories that describe themselves: config.json, model.safetensors and provenance.json.

They are written beside their place and renamed, so that a directory under its own name is whole; provenance.json,
written last, has the sha256 of the other two. Directories that others wrote have no such mark: they are held to what
their config asks for only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimtier.errors import ConfigError, ModelFileError
from slimtier.models.end_tokens import read_json
from slimtier.models.safetensors_file import FLOAT_BYTES, SafeTensor, all_tensors

CONFIG, WEIGHTS, PROVENANCE = "config.json", "model.safetensors", "provenance.json"
OWN = "slimtier"  # the block of config.json that only we write
FORMAT = 1
_ALIGN = 64

_WRITTEN = {"float32": "F32", "float16": "F16", "int64": "I64", "int8": "I8", "bool": "BOOL"}
_INTEGERS = {"I64": np.int64, "I32": np.int32, "I8": np.int8, "BOOL": np.bool_}
_ITEM_BYTES = {**FLOAT_BYTES, **{kind: np.dtype(number).itemsize for kind, number in _INTEGERS.items()}}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened directory: the tensors are mapped, not read. `provenance` is empty if another program wrote it."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, SafeTensor]
    provenance: dict[str, Any]


def read_checkpoint(path: Path) -> Checkpoint:
    """Open the directory `path`, and hold its files to their hashes where they are recorded.

    Raises ModelFileError for what is missing, truncated, damaged or half copied, UnsupportedError for a tensor of a
    format that is not read.
    """
    if not path.is_dir():
        left = path.parent / f".{path.name}.old"
        hint = f"a write was cut off: rename {left.name} back" if left.is_dir() else "check the path"
        raise ModelFileError(f"there is no directory {path}; {hint}")
    config = read_json(path / CONFIG)
    if not config:
        raise ModelFileError(f"{path} has no {CONFIG}; copy the whole directory again")
    provenance = read_json(path / PROVENANCE)
    marks = provenance.pop("sha256", None)
    if marks is None and OWN in config:
        raise ModelFileError(f"{path} has no {PROVENANCE} with hashes, so it is incomplete; copy the whole directory")
    for name, digest in (marks or {}).items():
        _check_hash(path / name, digest)
    return Checkpoint(path, config, all_tensors(path, _ITEM_BYTES), provenance)


def _check_hash(path: Path, expected: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error}; copy the whole directory again") from error
    if found != expected:
        raise ModelFileError(
            f"{path} has sha256 {found[:12]}…, {PROVENANCE} says {expected[:12]}…: it is truncated or was changed; "
            "copy the whole directory again"
        )


def write_checkpoint(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    provenance: Mapping[str, Any],
    *,
    replace: bool = False,
) -> None:
    """Write the directory `path`; it is there whole or not at all. One writer a path at a time.

    `tensors` are float32, float16, int64, int8 or bool. Killed while replacing, the former directory is left as
    `.NAME.old`. Raises ConfigError when `path` is there already and is not to be replaced, ModelFileError when the
    disk does not take it.
    """
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists: name another directory, or remove it")
    part = path.parent / f".{path.name}.part"
    config = {**config, OWN: {"format": FORMAT, **config.get(OWN, {})}}
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        part.mkdir(parents=True)
        _require_space(part, sum(values.nbytes for values in tensors.values()))
        hashes = {CONFIG: _write_json(part / CONFIG, config), WEIGHTS: _write_tensors(part / WEIGHTS, tensors)}
        _write_json(part / PROVENANCE, {**provenance, "sha256": hashes})
        _sync_directory(part)
        _put(part, path)
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror or error}; free space or name another") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _require_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ModelFileError(f"{directory.parent} has {free >> 20} MiB free, {needed >> 20} MiB are needed: free some")


def _write_json(path: Path, values: Mapping[str, Any]) -> str:
    """Write it; its sha256."""
    data = (json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    with path.open("wb") as file:
        file.write(data)
        _sync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Write a .safetensors file, the widest numbers first so that each lies where its size wants; its sha256."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in ordered:
        start, end = end, end + values.nbytes
        kind = _WRITTEN[values.dtype.name]
        head[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in (memoryview(len(text).to_bytes(8, "little") + text), *(_bytes(values) for _, values in ordered)):
            file.write(data)
            digest.update(data)
        _sync(file.fileno())
    return digest.hexdigest()


def _bytes(values: NDArray[Any]) -> memoryview:
    """The numbers row by row, little end first."""
    ordered = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _put(part: Path, path: Path) -> None:
    """Give `part` its name; what had it is removed afterwards."""
    old = path.parent / f".{path.name}.old"
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    try:
        os.replace(part, path)
    except OSError:
        if old.is_dir():
            os.replace(old, path)
        raise
    _sync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def integers(tensor: SafeTensor) -> NDArray[Any]:
    """The numbers of a tensor that stores integers or truths, in memory of their own."""
    return tensor.raw.view(_INTEGERS[tensor.source]).reshape(tensor.shape).copy()


def is_integral(tensor: SafeTensor) -> bool:
    """Whether `integers` reads it, and `dense` does not."""
    return tensor.source in _INTEGERS


def require_tensors(path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """ModelFileError unless the names and shapes that were `found` in `path` are those `expected`; it names one."""
    for name, shape in expected.items():
        if name not in found:
            missing = [other for other in expected if other not in found]
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelFileError(f"{path} lacks tensor {name}{more}; fetch or convert it again")
        if found[name] != shape:
            raise ModelFileError(
                f"{path}: tensor {name} has shape {list(found[name])}, its config asks for {list(shape)}; "
                "fetch or convert it again"
            )
    extra = [name for name in found if name not in expected]
    if extra:
        raise ModelFileError(
            f"{path}: its config has no use for tensor {extra[0]} ({len(extra)} such); mend the config, "
            "or convert it again"
        )
