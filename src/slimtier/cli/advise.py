"""`slimtier advise`: what would pay, before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimtier.cli import common
from slimtier.cli.advise_tiers import tiers
from slimtier.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from slimtier.advise.head import HeadAdvice
    from slimtier.loading import Loaded

advise = typer.Typer()
advise.command()(tiers)
DRAFT_PRECISIONS = ("q8", "fp32")


@advise.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Say what would pay, before it is trained."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@advise.command()
def head(
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "auto",
    draft_precision: Annotated[str, typer.Option(help="Of the drafter: q8 or fp32.")] = "q8",
    draft: Annotated[
        list[Path] | None, typer.Option(help="A trained draft's directory, to measure with; may be repeated.")
    ] = None,
    runtime: Annotated[str, typer.Option(help="auto or native: the kernels that are measured.")] = "auto",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure on this machine which draft head pays for MODEL, and how many tokens to draft. Nothing is trained.

    Settings: num_speculative_tokens, longest (draft to consider), rounds (of measuring); for --draft max_new_tokens
    and repeats.

    Example: slimtier advise head --model smollm2-135m --draft run/draft
    """
    if draft_precision not in DRAFT_PRECISIONS:
        raise ConfigError(f"draft_precision is {draft_precision!r}: choose one of {', '.join(DRAFT_PRECISIONS)}")
    from slimtier.advise.head import HeadPlan, advise_head
    from slimtier.config import read_dataclass
    from slimtier.drafters.eagle.load import read_draft

    plan = read_dataclass(HeadPlan, common.read_pairs(set_), "--set")
    for path in draft or ():
        read_draft(path)
    loaded = _load(model, runtime, precision, threads)
    with common.bar("measuring", "parts") as progress:
        found = advise_head(
            loaded,
            plan,
            precision=draft_precision,  # type: ignore[arg-type]
            drafts=draft or (),
            progress=progress,
        )
    typer.echo(common.measured_json(found.to_dict()) if json else _text(found))


def _load(model: str, runtime: str, precision: str, threads: int | None) -> Loaded:
    from slimtier.loading import RunOptions, load
    from slimtier.models.resolve import resolve

    options = RunOptions(runtime, precision, threads)
    if runtime == "hf":
        raise ConfigError("advise head measures our CPU kernels, which runtime hf does not use: leave --runtime out")
    files = resolve(model)
    try:
        with common.patience(f"loading {model}"):
            return load(files, options)
    except UnsupportedError as error:
        reason = str(error).removesuffix("; try --runtime hf")
        raise UnsupportedError(f"{reason}, and advise head measures native: choose another model") from error


def _text(found: HeadAdvice) -> str:
    from slimtier.advise.head_text import text_of

    return text_of(found)
