"""What a report is made of: all numbers and sentences of some results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slimtier.bench.findings import Findings, find
from slimtier.bench.quality import Quality, qualities
from slimtier.bench.results import Results
from slimtier.bench.summary import ALL, Answers, Line, Summary, summarise


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a page is made of."""

    results: Results
    answers: Answers
    summary: Summary
    qualities: tuple[Quality, ...]
    findings: Findings


def report_of(results: Results) -> Report:
    """All numbers and sentences of the results; systems come fastest first, those without a speed-up last."""
    answers = Answers(results)
    summary = summarise(results, answers)
    names = [line.system for line in sorted(summary.of(ALL), key=_speed_up, reverse=True)]
    places = {one.name: names.index(one.name) if one.name in names else len(names) for one in results.systems}
    results = replace(results, systems=tuple(sorted(results.systems, key=lambda system: places[system.name])))
    lines = sorted(summary.lines, key=lambda line: (summary.groups.index(line.group), places[line.system]))
    summary = replace(summary, systems=results.systems, lines=tuple(lines))
    quality = qualities(results, answers)
    return Report(results, answers, summary, quality, find(results, summary, answers, quality))


def _speed_up(line: Line) -> float:
    return line.speed.speed_up.value if line.speed.speed_up else 0.0
