"""`slimtier train` as a person meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from slimtier.cli.main import app
from tests.train.training import SHORT

SETTINGS = [word for pair in SHORT for word in ("--set", pair)]


def call(*arguments: str) -> tuple[int, str]:
    """Exit code, and what was printed."""
    result = CliRunner().invoke(app, ["train", *arguments])
    return result.exit_code, result.output


def test_a_run_and_its_end(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_capture), "--model", str(tiny_target), "--out", str(tmp_path / "run"), "--json", *SETTINGS]
    code, output = call(*arguments)
    assert code == 0, output
    told = json.loads(output.splitlines()[-1])
    assert (told["done"], told["finished"]) == (20, True)
    assert Path(told["draft"]).is_dir()
    assert call(*arguments, "--resume")[0] == 0


def test_one_line_says_what_is_wrong(tiny_capture: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code, output = call(str(tiny_capture), "--out", run, "--set", "optimisation.step=3")
    assert code == 1
    assert "'step'" in output
    assert "did you mean 'steps'" in output
    code, output = call(str(tmp_path / "none"), "--out", run)
    assert (code, output) == (
        1,
        f"error: there is no directory {tmp_path}/none: name one that `slimtier capture` wrote\n",
    )
    assert not (tmp_path / "run").exists()


def test_sigterm_leaves_a_run_that_goes_on(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from slimtier.cli.main import main; main()",
        "train",
        str(tiny_capture),
        "--model",
    ]
    command += [str(tiny_target), "--out", str(out), *SETTINGS, "--set", "optimisation.steps=100000"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while not list(out.glob("checkpoints/*.json")) and time.monotonic() - begun < 120:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "go on with --resume" in said
    assert (out / "draft" / "model.safetensors").is_file()
