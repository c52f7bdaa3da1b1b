"""`slimtier advise tiers`: whether a slim verifier pays."""

from __future__ import annotations

from typing import Annotated

import typer

from slimtier.cli import common


def tiers(
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "auto",
    drafter: common.Drafter = "auto",
    route: Annotated[
        list[str] | None, typer.Option(help="q4, q8, skip:RATIO or a file; may be repeated. Left out: the usual ones.")
    ] = None,
    runtime: common.Runtime = "auto",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure on this machine whether a slim verifier between drafter and target pays, and which.

    Settings: prompts, max_new_tokens, repeats, longest (run to consider), gate (conservative, default, aggressive).

    Example: slimtier advise tiers --model smollm2-135m --precision fp32 --route q4
    """
    from slimtier.advise.tiers import TierPlan, advise_tiers
    from slimtier.advise.tiers_text import text_of
    from slimtier.config import read_dataclass
    from slimtier.loading import RunOptions, load
    from slimtier.models.resolve import resolve
    from slimtier.registry import DRAFTERS, check_settings

    plan = read_dataclass(TierPlan, common.read_pairs(set_), "--set")
    for one in route or (None,):
        check_settings(drafter, "lossless", {}, "observe", one)
    options, entry = RunOptions(runtime, precision, threads), DRAFTERS[drafter]
    with common.patience(f"loading {model}"):
        loaded = load(resolve(model), options)
    with common.bar("measuring", "parts") as progress:
        found = advise_tiers(
            loaded,
            lambda: entry.build(loaded, {}, lambda other: load(other, options)),
            entry.num_speculative_tokens,
            plan,
            route or (),
            progress,
        )
    typer.echo(common.measured_json(found.to_dict()) if json else text_of(found))
