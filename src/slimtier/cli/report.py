"""`slimtier report`: what a benchmark measured, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimtier.cli import common


def report(
    results: Annotated[list[Path], typer.Argument(help="Results files of slimtier bench, of one model.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", help="A .html, .md or .csv file; may be repeated. Left out: Markdown is printed."
        ),
    ] = None,
) -> None:
    """Make a page, Markdown or a table from RESULTS: what is faster and by how much, and what speaks against it.

    Files of one model may be combined; speeds are compared within a file only.

    Example: slimtier report results.jsonl -o report.html -o report.csv
    """
    from slimtier.bench.report import check_suffix, write_reports
    from slimtier.bench.report.content import report_of
    from slimtier.bench.report.markdown import headline, markdown
    from slimtier.bench.results import read_results

    for path in output or ():
        check_suffix(path)
    read = read_results(results)
    for source in read.sources:
        if source.torn:
            common.note(f"{source.name}: its last line was cut off and is left out; is the benchmark still running?")
    if not output:
        typer.echo(markdown(report_of(read)), nl=False)
        return
    made = write_reports(read, output)
    typer.echo(headline(made))
    common.note(f"written: {', '.join(map(str, output))}")
