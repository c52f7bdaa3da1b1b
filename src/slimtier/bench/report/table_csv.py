"""The numbers as one table for a spreadsheet: a row for each system on each group of prompts."""

from __future__ import annotations

import csv
import io

from slimtier.bench.findings import is_lossy
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import COLUMNS
from slimtier.bench.statistics import Interval
from slimtier.bench.summary import Line

_RATIOS = ("speed_up", "end_to_end_speed_up")


def table_csv(report: Report) -> str:
    """`task` and `category` are empty where all of them count. Raw units: seconds, bytes, shares of 1. Quality columns
    are filled in the rows of whole tasks; systems that did not run have a row with their state."""
    measures = list(dict.fromkeys(row.measure for row in report.qualities))
    positions = max((len(line.work.by_position) for line in report.summary.lines), default=0)
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    heads = [
        "model",
        "task",
        "category",
        "system",
        "type",
        "state",
        "reason",
        "baseline",
        "lossy",
        "prompts",
        "answers",
    ]
    heads += [f"{name}{end}" for name in _RATIOS for end in ("", "_low", "_high")]
    heads += [*(column.name for column in COLUMNS), "acceptance_rate", "rejection_rate", "loop_share"]
    heads += [f"acceptance_position_{number}" for number in range(1, positions + 1)]
    heads += [f"{measure}{end}" for measure in measures for end in ("", " minus baseline", " low", " high")]
    writer.writerow(heads)
    for line in report.summary.lines:
        writer.writerow(
            [*_named(report, line.system, line), *_measured(line, positions), *_judged(report, line, measures)]
        )
    for system in report.summary.systems:
        if report.summary.line(system.name) is None:
            row = _named(report, system.name, None)
            writer.writerow([*row, *[None] * (len(heads) - len(row))])
    return output.getvalue()


def _named(report: Report, name: str, line: Line | None) -> list[object]:
    summary, system = report.summary, report.summary.system(name)
    group = (line.group.task, line.group.category) if line else (None, None)
    counts = (line.prompts, line.answers) if line else (0, 0)
    flags = (int(name == summary.baseline), int(is_lossy(system)))
    return [summary.model, *group, name, system.type, system.state, system.reason, *flags, *counts]


def _measured(line: Line, positions: int) -> list[object]:
    shares = line.work.by_position
    return [
        *_bounds(line.speed.speed_up),
        *_bounds(line.speed.end_to_end_speed_up),
        *(column.read(line) for column in COLUMNS),
        line.work.acceptance_rate,
        line.work.rejection_rate,
        line.loop_share,
        *shares,
        *[None] * (positions - len(shares)),
    ]


def _judged(report: Report, line: Line, measures: list[str]) -> list[object]:
    here = line.group.task if line.group.category is None else None
    found = {row.measure: row for row in report.qualities if (row.system, row.task) == (line.system, here)}
    cells: list[object] = []
    for measure in measures:
        row = found.get(measure)
        cells += [row.value if row else None, *_bounds(row.difference if row else None)]
    return cells


def _bounds(interval: Interval | None) -> tuple[float | None, ...]:
    return (None, None, None) if interval is None else tuple(interval)
