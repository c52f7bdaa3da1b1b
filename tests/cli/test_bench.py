"""`slimtier bench`: what it refuses before anything runs, and that a run is summed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slimtier.bench import start
from slimtier.cli.main import app


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--system", "lama.cpp"], "unknown system 'lama.cpp': did you mean 'llama.cpp'?"),
        (["--task", "gsm9k"], "unknown task 'gsm9k': did you mean 'gsm8k'?"),
        (["--set", "itms=3"], "unknown setting of the command line 'itms': did you mean 'items'?"),
        (["--task", "gsm8k"], "the task gsm8k needs its data"),
        (["--task", "qa=nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["--exactness", "--scaling"], "--exactness and --scaling are runs of their own"),
        (["--python", "peers"], "--python 'peers' is not TYPE=PATH"),
        (["--scaling", "--system", "llama.cpp"], "llama.cpp answers one prompt at a time"),
        (["--roofline", "--system", "llama.cpp"], "--roofline measures our own kernels"),
        (["nothing.toml"], "cannot read the config nothing.toml"),
        (["--set", "temperature=1", "--system", "llama.cpp"], "takes the most probable token only"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = run(*words)
    assert told.exit_code == 1
    assert error in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_bad_row_is_named_and_left_out_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n{"promt": "two"}\n')
    told = run("--task", f"prompts={file}", "-o", str(tmp_path / "out.jsonl"))
    assert told.exit_code == 1
    assert f"line 2 of {file} has no prompt" in told.stderr
    started: list[int] = []
    monkeypatch.setattr(start, "run_bench", lambda config, files, tokenizer, asked, *rest: started.append(len(asked)))
    run("--task", f"prompts={file}", "--skip-bad", "-o", str(tmp_path / "out.jsonl"))
    assert started == [1]


def exactness_file(path: Path, defects: int) -> Path:
    rows = [
        {"kind": "exactness", "system": "a", "reference": "b", "compared": 3, "identical": 3 - defects, "near_ties": 0,
         "defects": defects, "lossy": 0},
        {"kind": "draws", "accepts": "always", "draws": 10, "acceptance_rate": 1.0, "p_value": 0.5,
         "verdict": "as the target"},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("defects", [0, 2])
def test_a_defect_is_an_exit_code(defects: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = exactness_file(tmp_path / "out.jsonl", defects)
    monkeypatch.setattr(start, "run", lambda *given, **options: None)
    told = run("--exactness", "-o", str(out))
    assert told.exit_code == (1 if defects else 0)
    assert ("2 defects" if defects else "no defect") in told.stdout
    assert json.loads(run("--exactness", "-o", str(out), "--json").stdout)["defects"] == defects


def test_a_scaling_run_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    rows = [
        {"kind": "batch", "system": "a", "batch": size, "repeat": 0, "tokens_per_s": 10.0 * size} for size in (1, 4)
    ]
    rows.append({"kind": "schedule", "num_speculative_tokens_per_batch_size": [[1, 3, 3], [4, 4, 0]]})
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(start, "run", lambda *given, **options: None)
    printed = run("--scaling", "-o", str(out)).stdout
    assert "| a | 10 | 40 |" in printed
    assert "[[1, 3, 3], [4, 4, 0]]" in printed
