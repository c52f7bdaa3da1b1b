"""`slimtier route`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from slimtier.cli.main import OneLineErrors
from slimtier.cli.route import route
from slimtier.loading import Loaded, RunOptions
from slimtier.models.resolve import ModelFiles
from slimtier.models.route_file import RouteFile
from slimtier.route import command
from tests.byte_tokenizer import VOCAB, ByteTokenizer
from tests.stubs import StubTarget, drawn, seeded_normal

SMALL = ("positions=12", "stretch=4", "max_new_tokens=6", "trials=3", "greedy=none", "ratio=0.25")

app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False)
app.command()(route)


@app.callback()
def slimtier() -> None:
    """Its verbs."""


def run(*args: str, settings: tuple[str, ...] = SMALL) -> Any:
    return CliRunner().invoke(app, ["route", *args, *(word for one in settings for word in ("--set", one))])


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """What was to be loaded; it is a stub."""
    seen: list[RunOptions] = []

    def load(files: ModelFiles, options: RunOptions) -> Loaded:
        seen.append(options)
        target = StubTarget(VOCAB, num_layers=8, order=2)
        return Loaded(target, ByteTokenizer())

    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.loading.load", load)
    monkeypatch.setattr(command, "draw_search", lambda outcome, picture: f"{picture.name} is not drawn")
    return seen


def test_a_route_is_written(loads: list[RunOptions], tmp_path: Path) -> None:
    out = tmp_path / "new" / "route.json"
    done = run("--model", "m", "--precision", "fp32", "--threads", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert loads == [RunOptions("auto", "fp32", 1)]
    file = RouteFile.read(out)
    assert file.route.sublayers.count("skip") == 3
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{out}: ")
    assert [line.split()[0] for line in lines[3:6]] == ["search", "uniform", "first_n"]
    assert (tmp_path / "new" / "route.db").is_file()
    assert "3 trials and 0 evaluations for the greedy baseline" in done.stderr
    assert "route.png is not drawn" in done.stderr


def test_json(loads: list[RunOptions], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    done = run("--out", str(tmp_path / "r.json"), "--storage", url, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["found"]["trials"] == 3
    assert told["cost"]["skipped"] == 3 / 16
    assert set(told["measured"]) == {"search", "uniform", "first_n"}
    assert (tmp_path / "mine.db").is_file()
    assert not (tmp_path / "r.db").exists()


@pytest.mark.parametrize(
    ("args", "settings", "words"),
    [
        ((), (), "add --out route.json"),
        (("--out", "folder"), (), "add --out route.json"),
        (("--out", "r.json"), ("trails=3",), "did you mean 'trials'"),
        (("--out", "r.json"), ("trials",), "is not KEY=VALUE"),
        (("--out", "r.json"), ("ratio=2",), "ratio is 2"),
        (("--out", "r.json", "--prompts", "no/where.jsonl"), (), "cannot read no/where.jsonl"),
        (("--out", "r.json", "--precision", "q5"), (), "unknown precision 'q5'"),
        (("--analyse", "nonsense"), (), "route is 'nonsense', which is no file"),
        (("--analyse", "q4"), ("trials=3",), "unknown setting 'trials'"),
        (("--analyse", "q4"), ("draft=no/where",), "draft is 'no/where'"),
        (("--analyse", "q4", "--storage", "sqlite:///x.db"), (), "leave --storage out"),
    ],
)
def test_wrong_input_is_refused_before_loading(
    loads: list[RunOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: Any, settings: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args, settings=settings)
    assert done.exit_code == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not loads


def test_a_storage_that_cannot_be_used(loads: list[RunOptions], tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "r.json"), "--storage", "nothing")
    assert done.exit_code == 1
    assert "error: storage nothing cannot be used" in done.stderr


def test_without_optuna(loads: list[RunOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("--out", str(tmp_path / "r.json"))
    assert done.exit_code == 1
    assert "route needs optuna and scipy: pip install 'slimtier[route]'" in done.stderr
    assert not loads


@pytest.fixture
def draft(loads: list[RunOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that knows nothing, in the place of the shipped one."""
    drafter = drawn(lambda history: seeded_normal(VOCAB, "draft", history[-2:]).softmax(0))
    monkeypatch.setattr(command.Analysing, "_drafter", lambda *args: drafter)
    monkeypatch.setattr(command, "draw_geometry", lambda found, picture: picture.write_text("drawn"))


def test_an_analysis(draft: None, tmp_path: Path) -> None:
    out = tmp_path / "analysis.json"
    settings = ("positions=12", "stretch=4", "max_new_tokens=6")
    done = run("--analyse", "skip:0.25", "--out", str(out), "--json", settings=settings)
    assert done.exit_code == 0, done.output
    told, kept = json.loads(done.stdout), json.loads(out.read_text())
    assert told["positions"] == len(told["columns"]["usefulness"]) == 16  # those held out as well
    assert kept["provenance"]["python"]
    assert {name: kept[name] for name in told} == told
    assert (tmp_path / "analysis.png").read_text() == "drawn"
    done = run("--analyse", "none", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("by VIA-SD's criterion, which knows no times, no slim verifier\n")
    assert done.stdout.splitlines()[0] == "16 positions, drafter drawn, temperature 1"


def test_the_help_names_an_example() -> None:
    done = run("--help", settings=())
    assert done.exit_code == 0
    assert "slimtier route --model smollm2-135m --out route.json" in " ".join(done.stdout.split())
