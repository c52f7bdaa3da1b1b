"""`slimtier calibrate` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from slimtier.cli.calibrate import calibrate
from slimtier.cli.common import note_bound
from slimtier.cli.main import OneLineErrors
from slimtier.loading import Loaded, RunOptions
from slimtier.models.resolve import ModelFiles
from slimtier.models.route_file import RouteFile
from tests.byte_tokenizer import VOCAB, ByteTokenizer
from tests.stubs import StubTarget

QUICK = ("prompts=10", "max_new_tokens=4", "timed=1", "margins=[2,0]", "accepts=[]", "min_ngram=2")
SETTINGS = [word for pair in QUICK for word in ("--set", pair)]

app = typer.Typer(cls=OneLineErrors)
app.command()(calibrate)
app.callback()(lambda: None)  # so that it is a verb among others


class Loads(list[tuple[str, RunOptions]]):
    """What was loaded: the model's name and how."""

    def __init__(self) -> None:
        super().__init__()
        self.target = StubTarget(VOCAB, route_noise=0.5)
        self.tokenizer = ByteTokenizer()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    seen = Loads()

    def load(files: ModelFiles, options: RunOptions) -> Loaded:
        seen.append((files.name, options))
        return Loaded(seen.target, seen.tokenizer)

    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.loading.load", load)
    return seen


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows: list[dict[str, Any]] = [{"prompt": f"{number}?"} for number in range(9)]
    rows.append({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]})
    rows.append({"turns": ["first", "second"]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(prompts: Path, *words: str) -> Any:
    out = str(prompts.with_name("route.json"))
    given = ["calibrate", "--prompts", str(prompts), "--out", out, "--route", "skip:0.5", "--drafter", "ngram"]
    return CliRunner().invoke(app, [*given, *words])


def test_a_table_and_a_file(prompts: Path, loads: Loads) -> None:
    done = call(prompts, "--epsilon", "0.3", "--precision", "fp32", "--set", "threads=1", *SETTINGS)
    assert done.exit_code == 0, done.output
    assert "chosen: accept 1.0" in done.stdout
    assert "mean divergence at most 0.3 with confidence 0.95 (betting)" in done.stdout
    assert loads == [("smollm2-135m", RunOptions(precision="fp32", threads=1))]
    found = RouteFile.read(prompts.with_name("route.json")).calibrated
    assert (found["drafter"], found["drafter_settings"], found["num_speculative_tokens"]) == (
        "ngram",
        {"min_ngram": 2},
        5,
    )
    assert found["drafts"] == "ngram 2-4"
    assert (found["prompts"], found["max_new_tokens"]) == (10, 4)


def test_longer_answers_than_the_bound_is_about_are_said(
    prompts: Path, loads: Loads, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(prompts, "--epsilon", "0.3", *SETTINGS).exit_code == 0
    route = str(prompts.with_name("route.json"))
    note_bound(route, 4)
    assert capsys.readouterr().err == ""
    note_bound(route, 5)
    said = capsys.readouterr().err
    assert "about answers of at most 4 tokens (and prompts of at most 512), not 5" in said
    assert "--set max_new_tokens=5" in said


def test_json_and_the_same_again(prompts: Path, loads: Loads) -> None:
    one = call(prompts, "--epsilon", "0.3", *SETTINGS, "--json")
    assert one.exit_code == 0, one.output
    found = json.loads(one.stdout)
    assert found == dict(RouteFile.read(prompts.with_name("route.json")).calibrated)
    loads.target.calls.clear()
    two = json.loads(call(prompts, "--epsilon", "0.3", *SETTINGS, "--json").stdout)
    assert two["grid"] == found["grid"]
    assert not loads.target.calls


@pytest.mark.parametrize("chats", [True, False])
def test_first_turns_are_asked_as_the_model_is_talked_to(prompts: Path, loads: Loads, chats: bool) -> None:
    loads.tokenizer.has_chat_template = chats
    caches: list[Any] = []
    begin = loads.target.begin

    def watched(num_rows: int, capacity: int, inputs: Any = None) -> Any:
        cache = begin(num_rows, capacity, inputs)
        caches.append(cache)
        return cache

    loads.target.begin = watched  # type: ignore[method-assign]
    assert call(prompts, "--epsilon", "0.4", *[word.replace("=10", "=11") for word in SETTINGS]).exit_code == 0
    fed = [bytes(token for token in row if token < 256) for cache in caches for row in cache.rows]
    wanted = (
        (b"<user>0?<assistant>", b"<system>s<user>u<assistant>", b"<user>first<assistant>")
        if chats
        else (
            b"0?",
            b"first",
        )
    )
    for start in wanted:
        assert any(text.startswith(start) for text in fed), start
    assert not any(b"second" in text for text in fed)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--set", "max_new_token=4"], "did you mean 'max_new_tokens'?"),
        (["--set", "accept=0.5"], "unknown setting 'accept'"),
        (["--set", "epsilon=0.5"], "unknown setting 'epsilon'"),
        (["--set", "bound=bets"], "bound is 'bets': choose one of betting, hoeffding-bentkus, binomial"),
        (["--set", "bound=binomial"], "add loss=any"),
        (["--set", "timed=many"], "timed is 'many': give a whole number"),
        (["--set", "runtime=fast"], "unknown runtime 'fast'"),
        (["--set", "threads=0"], "threads is 0"),
        (["--set", "num_speculative_tokens=-1"], "num_speculative_tokens is -1"),
        (["--set", "draft=x"], "setting 'draft' is not used by drafter ngram"),
        (["--drafter", "ngrams"], "did you mean 'ngram'?"),
        (["--route", "q5"], "route is 'q5', which is no file"),
        (["--epsilon", "0"], "epsilon is 0.0"),
        (["--delta", "2"], "delta is 2.0"),
        ([], "11 prompts cannot support a bound of 0.02 at confidence 0.95, even if no token differed: give at least"),
    ],
)
def test_what_cannot_be_is_refused_before_loading(prompts: Path, loads: Loads, words: list[str], error: str) -> None:
    done = call(prompts, *words)
    assert done.exit_code == 1
    assert error in done.stderr
    assert done.stderr.count("\n") == 1
    assert not loads
    assert [path.name for path in prompts.parent.iterdir()] == ["prompts.jsonl"]


def test_a_gate_that_is_not_good_enough(prompts: Path, loads: Loads) -> None:
    loads.target.route_noise = 30.0
    done = call(prompts, "--epsilon", "0.3", *[word.replace("[2,0]", "[0]") for word in SETTINGS])
    assert done.exit_code == 1
    assert "even the safest gate (accept 1.0) has a mean divergence of" in done.stderr
    assert not prompts.with_name("route.json").exists()
