"""Directories that describe themselves: whole or not there, and never trusted when damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slimtier import checkpoint
from slimtier.checkpoint import integers, is_integral, read_checkpoint, require_tensors, write_checkpoint
from slimtier.errors import ConfigError, ModelFileError, UnsupportedError

TENSORS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2.0, 65504.0], dtype=np.float16),
    "ids": np.array([3, -1], dtype=np.int64),
    "codes": np.array([[-127, 5, 0]], dtype=np.int8),
    "flags": np.array([True, False, True]),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "none": np.zeros((0, 3), dtype=np.float32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A written checkpoint."""
    write_checkpoint(tmp_path / "draft", {"hidden_size": 3}, TENSORS, {"seed": 7})
    return tmp_path / "draft"


def test_round_trip(path: Path) -> None:
    read = read_checkpoint(path)
    assert read.config == {"hidden_size": 3, "slimtier": {"format": 1}}
    assert read.provenance == {"seed": 7}
    assert set(read.tensors) == set(TENSORS)
    for name, tensor in read.tensors.items():
        found = integers(tensor) if is_integral(tensor) else tensor.dense()
        np.testing.assert_array_equal(found, TENSORS[name])
        assert found.flags.writeable
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "provenance.json"]
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def test_the_library_reads_the_same(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    assert set(tensors) == set(TENSORS)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), TENSORS[name])
        assert tensor.numpy().dtype == TENSORS[name].dtype


def test_the_same_is_written_the_same(path: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "again", {"hidden_size": 3}, dict(reversed(TENSORS.items())), {"seed": 7})
    for file in path.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_of_another_program(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    read = read_checkpoint(tmp_path)
    assert read.provenance == {}
    assert read.tensors["a"].dense().tolist() == [1.0, 1.0]
    save_file({"a": torch.ones(2, dtype=torch.float64)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"tensor a is F64, native reads .*; convert it"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("percent", [0, 10, 50, 99])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_truncated_file(path: Path, name: str, percent: int) -> None:
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(ModelFileError, match=name):
        read_checkpoint(path)


def test_a_changed_byte(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError, match=r"it is truncated or was changed; copy the whole directory again"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "provenance.json"])
def test_a_missing_file(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(ModelFileError, match=rf"{name}.*copy the whole directory"):
        read_checkpoint(path)


def test_provenance_without_its_mark(path: Path) -> None:
    (path / "provenance.json").write_text('{"seed": 7}')
    with pytest.raises(ModelFileError, match="it is incomplete"):
        read_checkpoint(path)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="check the path"):
        read_checkpoint(tmp_path / "draft")
    (tmp_path / ".draft.old").mkdir()
    with pytest.raises(ModelFileError, match=r"a write was cut off: rename \.draft\.old back"):
        read_checkpoint(tmp_path / "draft")


def test_replacing(path: Path) -> None:
    with pytest.raises(ConfigError, match="exists: name another directory, or remove it"):
        write_checkpoint(path, {"hidden_size": 4}, TENSORS, {})
    assert read_checkpoint(path).config["hidden_size"] == 3
    write_checkpoint(path, {"hidden_size": 4}, TENSORS, {}, replace=True)
    assert read_checkpoint(path).config["hidden_size"] == 4
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def full_disk(at: int) -> Any:
    """An fsync that finds the disk full at call number `at`."""
    calls = iter(range(at + 1))

    def sync(descriptor: int) -> None:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")

    return sync


@pytest.mark.parametrize("at", range(4))
def test_a_full_disk_leaves_what_was_there(path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_sync", full_disk(at))
    with pytest.raises(ModelFileError, match="No space left on device; free space"):
        write_checkpoint(path, {"hidden_size": 4}, TENSORS, {}, replace=True)
    monkeypatch.setattr(checkpoint, "_sync", full_disk(at))
    with pytest.raises(ModelFileError, match="No space left on device"):
        write_checkpoint(path.parent / "new", {}, TENSORS, {})
    assert read_checkpoint(path).config["hidden_size"] == 3
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def test_space_is_looked_at_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(ModelFileError, match="MiB are needed"):
        write_checkpoint(path.parent / "new", {}, TENSORS, {})
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def test_the_new_one_cannot_be_put_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(source).name.endswith(".part"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ModelFileError, match="Input/output error"):
        write_checkpoint(path, {"hidden_size": 4}, TENSORS, {}, replace=True)
    assert read_checkpoint(path).config["hidden_size"] == 3
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def test_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path.parent / "new", {}, TENSORS, {})
    assert [file.name for file in path.parent.iterdir()] == ["draft"]


def test_what_a_killed_process_left_is_no_hindrance(path: Path) -> None:
    (path.parent / ".new.part").mkdir()
    (path.parent / ".new.part" / "model.safetensors").write_text("half")
    write_checkpoint(path.parent / "new", {}, TENSORS, {})
    assert sorted(file.name for file in path.parent.iterdir()) == ["draft", "new"]


def test_the_mark_is_the_files_hash(path: Path) -> None:
    marks = json.loads((path / "provenance.json").read_text())["sha256"]
    assert marks == {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in ("config.json", "model.safetensors")
    }


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"a": (2,)}, r"lacks tensor b and 1 more; fetch"),
        ({"a": (2,), "b": (1, 2), "c": ()}, r"tensor b has shape \[1, 2\], its config asks for \[2, 1\]"),
        ({"a": (2,), "b": (2, 1), "c": (), "d": (), "e": ()}, r"has no use for tensor d \(2 such\); mend the config"),
    ],
)
def test_tensors_are_required(found: dict[str, tuple[int, ...]], words: str) -> None:
    expected: dict[str, tuple[int, ...]] = {"a": (2,), "b": (2, 1), "c": ()}
    require_tensors(Path("draft"), expected, expected)
    with pytest.raises(ModelFileError, match=words):
        require_tensors(Path("draft"), expected, found)
