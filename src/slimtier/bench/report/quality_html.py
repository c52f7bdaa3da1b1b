"""Quality against speed, as pictures and a table; "" when the results have nothing for it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from slimtier.bench.quality import LIKELIHOOD, Quality, shown
from slimtier.bench.report import plots as p
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import NONE, bounds, breakable
from slimtier.bench.statistics import Interval
from slimtier.bench.summary import Group, Summary


def quality_panels(report: Report) -> str:
    """A scatter a task: quality against speed-up."""
    chosen = shown(report.qualities)
    numbers = {line.system: number for number, line in enumerate(report.summary.of(Group()))}
    panels, used = [], set()
    for task in dict.fromkeys(row.task for row in chosen):
        rows = [row for row in chosen if row.task == task and row.system in numbers]
        placed = [(row, ratio) for row in rows if (ratio := _task_speed(report.summary, row)) is not None]
        if placed:
            panels.append(_quality_panel(task, placed, numbers, report))
            used |= {row.system for row, _ in placed}
    legend = "".join(f"<li>{p.key(numbers[name])} {escape(name)}</li>" for name in numbers if name in used)
    return f'<ul class="legend">{legend}</ul><div class="panels">{"".join(panels)}</div>' if panels else ""


def _task_speed(summary: Summary, row: Quality) -> float | None:
    line = summary.line(row.system, Group(row.task))
    return line.speed.speed_up.value if line and line.speed.speed_up else None


def _quality_panel(task: str, placed: Sequence[tuple[Quality, float]], numbers: dict[str, int], report: Report) -> str:
    measure, floor = placed[0][0].measure, placed[0][0].floor
    reference = next((row.value for row, _ in placed if row.system == report.summary.baseline), None)
    series = []
    for row, ratio in placed:
        spread = None
        if reference is not None and row.difference is not None:
            spread = (reference + row.difference.low, reference + row.difference.high)
        series.append(p.Series(numbers[row.system], row.system, ((ratio, row.value),), (spread,)))
    heights = [row.value for row, _ in placed] + [bound for one in series if one.spreads[0] for bound in one.spreads[0]]
    heights += [floor] if floor is not None and measure != LIKELIHOOD else []
    x = p.ratio_scale([Interval(ratio, ratio, ratio) for _, ratio in placed])
    picture = p.scatter(series, x, p.linear_scale(heights, down=True), f"{task}: {measure} against speed-up", floor)
    dull = list(dict.fromkeys(row.measure for row in report.qualities if row.task == task and not row.informative))
    note = ""
    if dull:
        stand_in = " Log-likelihood stands in." if measure == LIKELIHOOD else ""
        note = f"<p class='soft'>Uninformative, not above the floor: {escape(', '.join(dull))}.{stand_in}</p>"
    unit = "log-likelihood, nats a token" if measure == LIKELIHOOD else measure
    return (
        f'<figure><h3>{escape(task)}</h3><p class="soft">{escape(unit)}</p><div class="framed">{picture}</div>'
        f'<figcaption class="framed axis">speed-up</figcaption>{note}</figure>'
    )


def quality_table(report: Report) -> str:
    """Each system's values beside the baseline's. Systems whose every value is the baseline's share a sentence."""
    baseline = report.summary.baseline
    others = [row for row in report.qualities if row.system != baseline]
    if not others:
        return ""
    moved = {row.system for row in others if row.verdict != "the same"}
    alike = [name for name in dict.fromkeys(row.system for row in others) if name not in moved]
    words = f"<p>Every value is the baseline's, answer by answer: {escape(', '.join(alike))}.</p>" if alike else ""
    theirs = {(row.task, row.measure): row.value for row in report.qualities if row.system == baseline}
    shown_rows = sorted((row for row in others if row.system in moved), key=lambda row: not row.informative)
    rows = "".join(_quality_row(row, theirs.get((row.task, row.measure))) for row in shown_rows)
    if not rows:
        return words
    return (
        f'{words}<div class="box wide" role="region" aria-label="Quality" tabindex="0"><table class="sorts"><thead><tr>'
        '<th scope="col">system</th><th scope="col" class="words">task</th><th scope="col" class="words">measure</th>'
        '<th scope="col">floor</th><th scope="col">baseline</th><th scope="col">value</th>'
        '<th scope="col">difference</th><th scope="col">95 % interval</th><th scope="col">pairs</th>'
        '<th scope="col">margin</th><th scope="col" class="words">against the baseline</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _quality_row(row: Quality, baseline: float | None) -> str:
    difference = row.difference
    words = (row.verdict or "no scores of items") if row.informative else "uninformative"
    kind = "words low" if words == "worse" else "words"
    sorted_by = "" if difference is None else repr(difference.value)
    return (
        f'<tr{"" if row.informative else " class=dull"}><th scope="row">{breakable(row.system)}</th>'
        f'<td class="words">{escape(row.task)}</td><td class="words">{escape(row.measure)}</td>'
        f"<td>{_thousandths(row.floor)}</td><td>{_thousandths(baseline)}</td>"
        f'<td data-value="{row.value!r}">{_thousandths(row.value)}</td>'
        f'<td data-value="{sorted_by}">{_thousandths(difference.value if difference else None, "+")}</td>'
        f'<td class="bounds">{bounds(difference, 3).replace("-", "−") or NONE}</td><td>{row.pairs}</td>'
        f'<td>{row.margin:g}</td><td class="{kind}">{words}</td></tr>'
    )


def _thousandths(value: float | None, sign: str = "") -> str:
    if not value:
        return NONE if value is None else "0.000"
    return f"{value:{sign}.3f}".replace("-", "−")
