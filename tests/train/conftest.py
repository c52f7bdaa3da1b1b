"""A tiny target and what was captured from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.train import run
from tests.train.captures import Recipe, some_rows, write_capture, write_target


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def tiny_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("capture"), Recipe(some_rows(60), shards=2))


@pytest.fixture(autouse=True)
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing matplotlib takes longer than a tiny run."""
    monkeypatch.setattr(run, "draw", lambda journal, picture: None)
