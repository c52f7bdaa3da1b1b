"""`slimtier advise`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slimtier.cli.main import app
from slimtier.loading import Loaded, RunOptions
from slimtier.models.resolve import ModelFiles
from tests.models.hf_models import CONFIGS, build
from tests.models.native_models import save
from tests.small_tokenizer import small_tokenizer

QUICK = ("--set", "rounds=1", "--set", "num_speculative_tokens=2", "--set", "longest=3", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    save("qwen3", path)
    small_tokenizer(96).save_pretrained(path)
    return str(path)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """What was to be loaded; nothing is."""
    seen: list[RunOptions] = []

    def load(files: ModelFiles, options: RunOptions) -> Loaded:
        seen.append(options)
        raise AssertionError("loaded")

    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.loading.load", load)
    return seen


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["advise", *args])


def test_a_table(model: str) -> None:
    done = run("head", "--model", model, "--precision", "fp32", "--draft-precision", "fp32", *QUICK)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{model} at fp32, drafter at fp32: with 2 drafted tokens κ = ")
    heads = [line.split("  ")[0] for line in lines[4:10]]
    slim = [f"slim, rank {rank}" for rank in (16, 8, 4, 2)]
    assert heads == ["full", *slim, "routed, rank 8, 96 rows"]
    assert any(line.startswith("recommended: ") for line in lines)


def test_json(model: str) -> None:
    done = run("head", "--model", model, "--precision", "q8", *QUICK, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["provenance"]["torch"]
    assert (found["precision"], found["draft_precision"], found["num_speculative_tokens"]) == ("q8", "q8", 2)
    assert len(found["cost"]["target_s"]) == 4
    assert {row["head"]["kind"] for row in found["heads"]} == {"full", "slim", "routed"}
    assert found["drafts"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--draft-precision", "q4"], "choose one of q8, fp32"),
        (["--runtime", "hf"], "advise head measures our CPU kernels, which runtime hf does not use"),
        (["--runtime", "fast"], "unknown runtime 'fast'"),
        (["--precision", "q5"], "unknown precision 'q5'"),
        (["--draft", "no/where"], "there is no directory no/where"),
        (["--set", "round=3"], "did you mean 'rounds'"),
        (["--set", "rounds=many"], "rounds is 'many': give a whole number"),
        (["--set", "longest=2"], "longest is 2, less than num_speculative_tokens 5"),
    ],
)
def test_wrong_input_is_refused_before_loading(loads: list[RunOptions], args: list[str], words: str) -> None:
    done = run("head", *args)
    assert done.exit_code == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not loads


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    build(CONFIGS["t5"]()).save_pretrained(tmp_path)
    done = run("head", "--model", str(tmp_path))
    assert done.exit_code == 1
    assert "and advise head measures native: choose another model" in done.stderr
    assert "runtime hf" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_tiers_of_several_routes(model: str) -> None:
    plan = ("--set", "prompts=1", "--set", "max_new_tokens=8", "--set", "repeats=1", "--set", "longest=3")
    routes = ("--route", "q4", "--route", "skip:0.5")
    done = run("tiers", "--model", model, "--precision", "fp32", "--drafter", "ngram", *routes, *plan, "--json")
    assert done.exit_code == 0, done.output
    assert [row["route"] for row in json.loads(done.stdout)["rows"]] == ["q4", "skip:0.5"]


def test_advise_alone_tells_what_there_is() -> None:
    done = run()
    assert done.exit_code == 2
    assert "head" in done.stdout
    assert done.stderr == ""
