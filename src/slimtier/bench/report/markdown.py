"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from slimtier.bench.doubts import Finding
from slimtier.bench.findings import is_lossy
from slimtier.bench.report.batches import batches_markdown
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import (
    COLUMNS,
    DEFINITIONS,
    NONE,
    OWN_DEFINITIONS,
    PARTS,
    bounds,
    cell,
    facts,
    provenance_facts,
    significant,
)
from slimtier.bench.result_rows import SPLIT
from slimtier.bench.statistics import markdown_table, ratio_text
from slimtier.bench.summary import Group


def markdown(report: Report) -> str:
    """All numbers of the page as tables; the outputs stay with the page."""
    parts = [f"# Decoding {report.summary.model}", " · ".join(facts(report)), headline(report)]
    for title, body in (
        ("Speed", _speed(report)),
        ("Speed-up by task", _groups(report)),
        ("Acceptance by draft position", _positions(report)),
        ("Milliseconds of a round", _split(report)),
        ("Quality", _quality(report)),
        ("Throughput by batch size", batches_markdown(report)),
        ("Exactness", _exactness(report)),
        ("Noise", _noise(report)),
        ("Systems that did not run", _absent(report)),
        ("Where the numbers are from", _provenance(report)),
        ("Definitions", markdown_table(("word", "meaning"), list({**DEFINITIONS, **OWN_DEFINITIONS}.items()))),
    ):
        if body:
            parts.append(f"## {title}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def brief(report: Report) -> str:
    """The sentences and the table of all systems, for a terminal."""
    return f"{headline(report)}\n\n{_speed(report)}"


def headline(report: Report) -> str:
    """What speaks for slimtier, against it, and for doubt."""
    found = report.findings
    lists = [("For slimtier", found.favour), ("Against slimtier", found.against), ("Doubts", found.doubts)]
    return "\n\n".join(f"**{title}**\n\n{_list(findings)}" for title, findings in lists if findings)


def _list(findings: Iterable[Finding]) -> str:
    return "\n".join(f"- {finding.figure}: {finding.text}" for finding in findings)


def _speed(report: Report) -> str:
    heads = ["system", "speed-up", "prompts", *(column.head for column in COLUMNS)]
    rows = []
    for line in report.summary.of(Group()):
        marks = [
            *(["baseline"] if line.system == report.summary.baseline else []),
            *(["lossy"] if is_lossy(report.summary.system(line.system)) else []),
        ]
        name = f"{line.system} ({', '.join(marks)})" if marks else line.system
        cells = [cell(column.read(line), column.write) for column in COLUMNS]
        rows.append([name, ratio_text(line.speed.speed_up), line.prompts, *cells])
    return markdown_table(heads, rows)


def _groups(report: Report) -> str:
    summary = report.summary
    groups = summary.groups[1:]
    systems = [line.system for line in summary.of(Group()) if line.system != summary.baseline]
    if len(groups) < 2 or not systems:
        return ""
    rows: list[Sequence[Any]] = []
    for group in groups:
        lines = {line.system: line for line in summary.of(group)}
        prompts = max(line.prompts for line in lines.values())
        rows.append(
            [
                group.name,
                prompts,
                *(ratio_text(lines[name].speed.speed_up) if name in lines else "" for name in systems),
            ]
        )
    return markdown_table(["task", "prompts", *systems], rows)


def _positions(report: Report) -> str:
    lines = [line for line in report.summary.of(Group()) if line.work.by_position]
    longest = max((len(line.work.by_position) for line in lines), default=0)
    rows = [
        [
            line.system,
            *(f"{value:.2f}" for value in line.work.by_position),
            *[None] * (longest - len(line.work.by_position)),
        ]
        for line in lines
    ]
    return markdown_table(["system", *(str(position) for position in range(1, longest + 1))], rows) if rows else ""


def _split(report: Report) -> str:
    lines = [line for line in report.summary.of(Group()) if line.work.split_rounds and line.work.time_split_s]
    present = [part for part in SPLIT if any(part in line.work.time_split_s for line in lines)]
    rows = []
    for line in lines:
        rounds = line.work.split_rounds
        sizes = [1000 * line.work.time_split_s.get(part, 0.0) / rounds for part in present]
        tokens = line.work.split_tokens / rounds
        rows.append(
            [line.system, *(significant(size) if size else NONE for size in (sum(sizes), *sizes)), f"{tokens:.2f}"]
        )
    heads = ["system", "a round", *(PARTS[part] for part in present), "tokens a round"]
    return markdown_table(heads, rows) if rows else ""


def _quality(report: Report) -> str:
    rows = []
    for row in report.qualities:
        judged = row.verdict or "no scores of items"
        words: str = "is the baseline" if row.system == report.summary.baseline else judged
        difference = None if row.system == report.summary.baseline else row.difference
        minus = "" if difference is None else f"{difference.value:+.3f} [{bounds(difference, 3)}]"
        words = words if row.informative else "uninformative: not above the floor"
        rows.append([row.task, row.measure, row.system, f"{row.value:.3f}", minus, row.pairs, f"{row.margin:g}", words])
    heads = ["task", "measure", "system", "value", "minus baseline", "pairs", "margin", "against the baseline"]
    return markdown_table(heads, rows) if rows else ""


def _exactness(report: Report) -> str:
    heads = ["system", "compared with", "answers", "identical", "near-ties", "defects", "lossy"]
    pairs = [list(asdict(row).values()) for row in report.results.exactness]
    tests = [list(asdict(row).values()) for row in report.results.draws]
    parts = [markdown_table(heads, pairs)] if pairs else []
    if tests:
        parts.append(markdown_table(["drafter is accepted", "draws", "acceptance rate", "p-value", "output"], tests))
    return "\n\n".join(parts)


def _noise(report: Report) -> str:
    control = report.summary.control
    if control is None:
        return "The baseline did not answer twice, so the noise is not known."
    words = "too noisy" if control.noisy else "quiet enough"
    return (
        f"The baseline against itself: {control.ratio.value:.3f} (95 % interval {bounds(control.ratio, 3)}, "
        f"{len(control.by_prompt)} prompts). The machine was {words}."
    )


def _absent(report: Report) -> str:
    rows = [[system.name, system.state, system.reason] for system in report.results.systems if system.state != "ready"]
    rows += [[name, "failed requests", str(count)] for name, count in report.summary.failures.items()]
    return markdown_table(["system", "state", "reason"], rows) if rows else ""


def _provenance(report: Report) -> str:
    return "\n\n".join(
        f"**{source.file}**\n\n{markdown_table(('what', 'value'), list(provenance_facts(source).items()))}"
        for source in report.results.sources
    )
