"""`slimtier capture`: what it refuses before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slimtier.cli.main import app


def refused(tmp_path: Path, *arguments: str) -> str:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "hi"}) + "\n")
    result = CliRunner().invoke(app, ["capture", str(prompts), "--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--answers", "mine"), "--answers mine: choose own, given, or an address as http://localhost:8000/v1"),
        (("--answers", "given", "--set", "seed=3"), "--set seed is about writing answers: leave it out with --answers"),
        (("--answers", "given"), "no usable prompt (1 × no messages, so no answer): write rows like"),
        (("--tokens", "0"), "--disk-budget and --tokens must be above 0"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(tmp_path, *arguments)
