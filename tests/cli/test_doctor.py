"""`slimtier doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slimtier.advise.report import Finding, Position, Report
from slimtier.cli.main import app
from slimtier.loading import Loaded, RunOptions
from slimtier.models.resolve import ModelFiles
from tests.byte_tokenizer import VOCAB, ByteTokenizer
from tests.stubs import StubTarget

SOUND = Report("draft", "m", (Finding("files", "ok", "14 tensors"), Finding("config", "note", "colour")))
POSITIONS = (Position(40, 30, 31, 0.75), Position(0, 0, 0, 0.5))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the verb asked for; it gets SOUND."""
    seen: list[dict[str, Any]] = []

    def load(files: ModelFiles, options: RunOptions) -> Loaded:
        seen.append({"model": files.name, "options": options})
        return Loaded(StubTarget(VOCAB), ByteTokenizer())

    def diagnose(path: Path, loaded: Loaded, **options: Any) -> Report:
        options["progress"](1, 2)
        seen.append({"path": path, **options})
        return SOUND

    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.loading.load", load)
    monkeypatch.setattr("slimtier.advise.doctor.diagnose", diagnose)
    return seen


def test_what_is_asked(calls: list[dict[str, Any]]) -> None:
    done = CliRunner().invoke(
        app,
        ["doctor", "run/draft", "--model", "m", "--precision", "q8", "--threads", "1", "--num-speculative-tokens", "3"],
    )
    assert done.exit_code == 0, done.output
    assert calls[0] == {"model": "m", "options": RunOptions("auto", "q8", 1)}
    assert (calls[1]["path"], calls[1]["threads"]) == (Path("run/draft"), 1)
    assert (calls[1]["trial"].num_speculative_tokens, calls[1]["trial"].max_new_tokens) == (3, 64)


def test_text(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("draft", "m", (*SOUND.findings, Finding("acceptance", "error", "a gap")), POSITIONS)
    monkeypatch.setattr("slimtier.advise.doctor.diagnose", lambda *args, **options: report)
    done = CliRunner().invoke(app, ["doctor", "draft"])
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[:3] == ["ok     files       14 tensors", "note   config      colour", "error  acceptance  a gap"]
    assert lines[4] == "position   drafts   accepted in decoding   foreseen there   foreseen everywhere"
    assert lines[5].split() == ["1", "40", "0.750", "0.775", "0.750"]
    assert lines[6].split() == ["2", "0", "-", "-", "0.500"]


def test_json(calls: list[dict[str, Any]]) -> None:
    done = CliRunner().invoke(app, ["doctor", "draft", "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told.pop("provenance")["argv"]
    assert told == json.loads(json.dumps(SOUND.to_dict()))


def test_a_wrong_number_is_refused_before_loading(calls: list[dict[str, Any]]) -> None:
    done = CliRunner().invoke(app, ["doctor", "draft", "--num-speculative-tokens", "-1"])
    assert done.exit_code == 1
    assert "num_speculative_tokens is -1" in done.output
    assert not calls


def test_a_missing_draft_is_a_finding(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.loading.load", lambda *args: Loaded(StubTarget(VOCAB), ByteTokenizer()))
    done = CliRunner().invoke(app, ["doctor", "no/where"])
    assert done.exit_code == 1
    assert done.output.startswith("error  draft       there is no directory no/where; check the path")
