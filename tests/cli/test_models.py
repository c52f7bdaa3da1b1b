"""`slimtier models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slimtier.cli.models import models
from slimtier.models.aliases import ALIASES, cached_path


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(models)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTIER_CACHE", str(tmp_path))


def test_table() -> None:
    output = run()
    assert "smollm2-135m (default)" in " ".join(output.split())
    assert "Apache-2.0" in output
    assert "98 MB" in output
    assert "gemma3-270m" in output


def test_json() -> None:
    path = cached_path(ALIASES["gemma3-270m"])
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(ALIASES["gemma3-270m"].size)
    rows = {row["name"]: row for row in json.loads(run("--json"))}
    assert rows["smollm2-135m"]["default"]
    assert not rows["smollm2-135m"]["cached"]
    assert rows["gemma3-270m"]["cached"]
    assert rows["gemma3-270m"]["bytes"] == 253_113_024
