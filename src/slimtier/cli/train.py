"""`slimtier train`: a draft from what was captured."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from slimtier.cli import common
from slimtier.errors import ConfigError, InputError

STOPPED = 130


def train(
    capture: Annotated[Path, typer.Argument(help="A directory that `slimtier capture` wrote; with --online, prompts.")],
    out: Annotated[Path, typer.Option(help="Where the run is kept: draft/, checkpoints/, metrics.jsonl, curve.png.")],
    model: common.Model = common.DEFAULT_MODEL,
    config: Annotated[Path | None, typer.Option(help="A TOML file; see docs/training.md.")] = None,
    init: Annotated[Path | None, typer.Option(help="A draft directory to go on from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False,
    online: Annotated[
        bool, typer.Option("--online", help="MODEL answers the prompts while it is trained on; nothing is kept.")
    ] = False,
    precision: Annotated[str | None, typer.Option(help="Of MODEL, online; as for `slimtier capture`.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="Online; as for `slimtier capture`.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a draft of MODEL on CAPTURE; a signal stops it cleanly, --resume goes on to the same result.

    Example: slimtier train captured --out run --set "unroll.phases=[[1,0.8],[3,0.2]]" --set loss.candidates=4096
    Without a cache: slimtier train prompts.jsonl --online --out run --set optimisation.steps=2000
    """
    from slimtier.train.config import read_config

    settings = read_config(config, set_ or ())
    if not online and (precision or held_out):
        raise ConfigError("--precision and --held-out are for --online: a capture has its answers already")
    if not online and not capture.is_dir():
        raise InputError(f"there is no directory {capture}: name one that `slimtier capture` wrote")
    kept = common.prompts_to_answer(capture, held_out) if online else None

    import torch

    from slimtier.loading import RunOptions, load
    from slimtier.train.online import Online
    from slimtier.train.run import Request
    from slimtier.train.run import train as run

    if threads is not None:
        torch.set_num_threads(threads)
    source = None
    if kept is not None:
        with common.patience(f"loading {model}"):
            source = Online(load(model, RunOptions("auto", precision or "q8", threads, device)), kept)
    directory = None if online else capture
    with common.bar("writing the first answers" if online else "checking shards") as progress:
        outcome = run(Request(directory, model, out, settings, resume, init, device, source), common.note, progress)
    if json:
        typer.echo(json_module.dumps(outcome.to_dict()))
    elif outcome.finished:
        common.note(f"{outcome.steps} steps done: {outcome.draft}")
    if not outcome.finished:
        common.note(f"stopped at step {outcome.done} of {outcome.steps}: go on with --resume")
        raise typer.Exit(STOPPED)
