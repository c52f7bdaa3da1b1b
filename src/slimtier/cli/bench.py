"""`slimtier bench`: systems side by side on the same prompts."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from slimtier.cli import common
from slimtier.errors import ConfigError


def bench(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings and systems.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The rows, as JSON Lines.")] = Path("bench.jsonl"),
    exactness: Annotated[
        bool, typer.Option("--exactness", help="Say where answers part from plain decoding, and why; 1 on a defect.")
    ] = False,
    scaling: Annotated[bool, typer.Option("--scaling", help="Throughput by batch size instead of one by one.")] = False,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="What fraction of the machine's limit our kernels reach.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="About three minutes, on the package's own prompts.")] = False,
    model: Annotated[str | None, typer.Option(help="An alias, a directory, a .gguf file or a hub id.")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(help="TYPE or TYPE:option=value,...; may be repeated, the first is the baseline."),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="NAME or NAME=FILE; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(help="The directory of the tasks' files.")] = None,
    python: Annotated[
        list[str] | None, typer.Option(metavar="TYPE=PATH", help="The Python that has a peer; peers=PATH for all.")
    ] = None,
    threads: common.Threads = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave rows out that cannot be used.")] = False,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Answer the same prompts with several systems in turn, and compare speed, acceptance and quality.

    Types: slimtier (precision, runtime, drafter, verifier, num_speculative_tokens, and their settings), transformers,
    llama.cpp, vllm, economize, flashspec. The same command goes on with a run that was stopped. Settings: items (of
    each category), categories, max_new_tokens, max_prompt_tokens, temperature, repeats, seed, batches.

    Example: slimtier bench --quick --system slimtier:drafter=none --system slimtier --output out.jsonl
    """
    from slimtier.bench.config import read_config
    from slimtier.bench.exactness import with_references
    from slimtier.bench.start import measure, run

    flags: dict[str, Any] = {"model": model, "tasks": task, "threads": threads}
    flags |= {"data": str(data) if data else None, "systems": _systems(system), "python": _interpreters(python)}
    chosen = read_config(config, quick=quick, over={**_given(flags), **common.read_pairs(set_)})
    modes = [name for name, asked in (("exactness", exactness), ("scaling", scaling), ("roofline", roofline)) if asked]
    if len(modes) > 1:
        raise ConfigError(f"--{modes[0]} and --{modes[1]} are runs of their own: give one of them")
    mode: Any = modes[0] if modes else "compare"
    if mode == "roofline":
        with common.bar("measuring", "rounds") as progress:
            measure(chosen, output, progress)
    else:
        run(with_references(chosen) if exactness else chosen, output, mode, skip_bad=skip_bad, note=common.note)
    if _tell(output, mode, json):
        raise typer.Exit(1)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value}


def _systems(texts: list[str] | None) -> list[Any]:
    from slimtier.bench.systems import parse_system

    return [parse_system(text) for text in texts or ()]


def _interpreters(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or ():
        type_, equals, path = pair.partition("=")
        if not equals or not path:
            raise ConfigError(f"--python {pair!r} is not TYPE=PATH: write for example --python peers=venv/bin/python")
        found[type_] = path
    return found


def _tell(output: Path, mode: str, json: bool) -> bool:
    """Print what came out; True when it has a defect."""
    from slimtier.bench.outcome import outcome_of

    outcome = outcome_of(output, mode)
    typer.echo(dumps(outcome.values, ensure_ascii=False) if json else outcome.text)
    return outcome.defects > 0
