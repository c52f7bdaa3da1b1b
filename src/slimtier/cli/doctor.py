"""`slimtier doctor`: is a draft sound?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimtier.cli import common

if TYPE_CHECKING:
    from slimtier.advise.report import Report


def doctor(
    draft: Annotated[Path, typer.Argument(help="The directory of a draft: slimtier's, EAGLE's, speculators' ...")],
    model: common.Model = common.DEFAULT_MODEL,
    runtime: common.Runtime = "auto",
    precision: common.Precision = "auto",
    max_new_tokens: common.MaxNewTokens = 64,
    num_speculative_tokens: Annotated[int, typer.Option(help="Tokens of a draft.")] = 5,
    threads: common.Threads = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Examine DRAFT: its files, its config, its target, and whether decoding accepts what its network foresees.

    A few prompts are answered with it at temperature 0. Where acceptance is lower than it should be, the usual causes
    are tried and the one that explains it is named. Exit code 1 when something is wrong.

    Example: slimtier doctor run/draft --model smollm2-135m
    """
    from slimtier.advise.doctor import Trial, diagnose
    from slimtier.engine import check_count
    from slimtier.loading import RunOptions, load
    from slimtier.models.resolve import resolve

    check_count(num_speculative_tokens)
    options = RunOptions(runtime, precision, threads)
    files = resolve(model)
    with common.patience(f"loading {model}"):
        loaded = load(files, options)
    trial = Trial(max_new_tokens=max_new_tokens, num_speculative_tokens=num_speculative_tokens)
    with common.bar("examining", "texts") as progress:
        report = diagnose(draft, loaded, trial=trial, threads=threads, progress=progress)
    typer.echo(common.measured_json(report.to_dict()) if json else text_of(report))
    if not report.healthy:
        raise typer.Exit(1)


def text_of(report: Report) -> str:
    """A line a finding, then a line a position of the draft."""
    lines = [f"{finding.state:<5}  {finding.about:<10}  {finding.text}" for finding in report.findings]
    if report.positions:
        lines += ["", "position   drafts   accepted in decoding   foreseen there   foreseen everywhere"]
    for number, one in enumerate(report.positions, 1):
        shares = [f"{count / one.rounds:.3f}" if one.rounds else "-" for count in (one.decoded, one.forced)]
        lines.append(f"{number:>8} {one.rounds:>8} {shares[0]:>22} {shares[1]:>16} {one.everywhere:>21.3f}")
    return "\n".join(lines)
