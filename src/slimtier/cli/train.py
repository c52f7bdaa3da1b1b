"""`slimtier train`: a draft from what was captured."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from slimtier.cli import common
from slimtier.errors import InputError

STOPPED = 130


def train(
    capture: Annotated[Path, typer.Argument(help="A directory that `slimtier capture` wrote.")],
    out: Annotated[Path, typer.Option(help="Where the run is kept: draft/, checkpoints/, metrics.jsonl, curve.png.")],
    model: common.Model = common.DEFAULT_MODEL,
    config: Annotated[Path | None, typer.Option(help="A TOML file; see docs/training.md.")] = None,
    init: Annotated[Path | None, typer.Option(help="A draft directory to go on from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a draft of MODEL on CAPTURE; a signal stops it cleanly, --resume goes on to the same result.

    Example: slimtier train captured --out run --set unroll.phases=[[1,0.8],[3,0.2]] --set loss.candidates=4096
    """
    from slimtier.train.config import read_config

    settings = read_config(config, set_ or ())
    if not capture.is_dir():
        raise InputError(f"there is no directory {capture}: name one that `slimtier capture` wrote")

    import torch

    from slimtier.train.run import Request
    from slimtier.train.run import train as run

    if threads is not None:
        torch.set_num_threads(threads)
    with common.bar("checking shards") as progress:
        outcome = run(Request(capture, model, out, settings, resume, init, device), common.note, progress)
    if json:
        typer.echo(json_module.dumps(outcome.to_dict()))
    elif outcome.finished:
        common.note(f"{outcome.steps} steps done: {outcome.draft}")
    if not outcome.finished:
        common.note(f"stopped at step {outcome.done} of {outcome.steps}: go on with --resume")
        raise typer.Exit(STOPPED)
