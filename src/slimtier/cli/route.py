"""`slimtier route`: find a route of the target for a slim verifier."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimtier.cli import common

if TYPE_CHECKING:
    from slimtier.loading import Loaded


def route(
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "auto",
    runtime: common.Runtime = "auto",
    threads: common.Threads = None,
    out: Annotated[Path | None, typer.Option(help="The route file to write; a picture goes beside it.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON Lines; a few of our own if left out.")] = None,
    storage: Annotated[str | None, typer.Option(help="An Optuna URL; a file beside --out if left out.")] = None,
    analyse: Annotated[str | None, typer.Option(metavar="ROUTE", help="Compare this route with a draft.")] = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search which sublayers of MODEL a slim verifier can skip, or run at low precision, at the least divergence.

    The same command goes on with a search that was stopped, and several processes may work on one. --analyse searches
    nothing: it says where a route (q4, skip:0.1, a file) stands between a draft and the model.
    For all settings see docs/routes.md.

    Example: slimtier route --model smollm2-135m --out route.json --set ratio=0.1 --set trials=100
    """
    from slimtier.route.calibration import read_prompts
    from slimtier.route.command import read_command
    from slimtier.route.live import Live

    work = read_command(common.read_pairs(set_), analyse, storage, out)
    texts = read_prompts(prompts)
    loaded = _load(model, runtime, precision, threads)
    with Live() as live:
        found, text = work(loaded, texts, live, threads)
    typer.echo(json_module.dumps(found, ensure_ascii=False) if json else text)


def _load(model: str, runtime: str, precision: str, threads: int | None) -> Loaded:
    from slimtier.loading import RunOptions, load
    from slimtier.models.resolve import resolve

    options = RunOptions(runtime, precision, threads)
    files = resolve(model)
    with common.patience(f"loading {model}"):
        return load(files, options)
