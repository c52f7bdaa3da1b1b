"""`slimtier repair`: low-rank adapters for a route that skips layers."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from slimtier.cli import common
from slimtier.errors import InputError

STOPPED = 130


def repair(
    capture: Annotated[Path, typer.Argument(help="A directory that `slimtier capture` wrote.")],
    route: Annotated[str, typer.Option(help="What to repair: skip:RATIO, or a file of `slimtier route`.")],
    out: Annotated[Path, typer.Option(help="Where the run is kept: route/, checkpoints/, metrics.jsonl.")],
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "auto",
    config: Annotated[Path | None, typer.Option(help="A TOML file; see docs/routes.md.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train low-rank adapters that bring ROUTE of MODEL closer to MODEL, on what it answered in CAPTURE; they are on
    when a slim verifier runs on the route, and off when MODEL does. --route OUT/route then names the result.

    Example: slimtier repair captured --route skip:0.1 --out repaired --set rank=16 --set steps=500
    """
    from slimtier.models.route_file import check_route
    from slimtier.train.repair_settings import read_repair

    settings = read_repair(config, common.read_pairs(set_))
    check_route(route)
    if not capture.is_dir():
        raise InputError(f"there is no directory {capture}: name one that `slimtier capture` wrote")

    import torch

    from slimtier.train.repair import Repair
    from slimtier.train.repair import repair as run

    if threads is not None:
        torch.set_num_threads(threads)
    request = Repair(capture, model, route, out, settings, precision, device, resume)
    with common.bar("checking shards") as progress:
        found = run(request, common.note, progress)
    if json:
        typer.echo(json_module.dumps(found.to_dict()))
    elif found.after is not None:
        common.note(f"{found.done} steps done: use it with --route {found.directory}")
    if found.after is None:
        common.note(f"stopped at step {found.done} of {found.steps}: go on with --resume")
        raise typer.Exit(STOPPED)
