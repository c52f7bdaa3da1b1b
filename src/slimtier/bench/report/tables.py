"""The page's tables and pictures, a function a section; each gives "" when the results have nothing for it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from slimtier.bench.doubts import counted
from slimtier.bench.findings import LEAST_PROMPTS, is_lossy
from slimtier.bench.report import plots as p
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import COLUMNS, NONE, PARTS, bounds, breakable, cell, significant
from slimtier.bench.result_rows import SPLIT
from slimtier.bench.summary import OURS, Group, Line, Summary


def speed_table(report: Report) -> str:
    """All systems over all prompts."""
    summary = report.summary
    lines = summary.of(Group())
    scale = p.ratio_scale([line.speed.speed_up for line in lines])
    heads = "".join(f'<th scope="col">{column.head}</th>' for column in COLUMNS)
    rows = "".join(_speed_row(line, summary, scale) for line in lines)
    return (
        '<div class="box wide" role="region" aria-label="Speed of all systems" tabindex="0">'
        '<table class="sorts"><thead><tr><th scope="col">system</th><th scope="col">speed-up</th>'
        f'<th scope="col" class="pictured"><span class="unseen">speed-up, drawn</span>{p.ratio_axis(scale)}</th>'
        f'<th scope="col">prompts</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _speed_row(line: Line, summary: Summary, scale: p.Scale) -> str:
    cells = "".join(
        f'<td data-value="{"" if (value := column.read(line)) is None else value!r}">{cell(value, column.write)}</td>'
        for column in COLUMNS
    )
    return (
        f'<tr><th scope="row">{system_name(summary, line.system)}</th>{_ratio_cells(line, summary, scale)}'
        f'<td data-value="{line.prompts}">{line.prompts}</td>{cells}</tr>'
    )


def _ratio_cells(line: Line, summary: Summary, scale: p.Scale) -> str:
    """The speed-up with its interval below, and drawn."""
    ratio = line.speed.speed_up
    drawn = p.interval_bar(ratio, scale, _spoken(line), kind_of(summary, line.system))
    if ratio is None:
        return f'<td data-value="">{NONE}</td><td>{drawn}</td>'
    low = " low" if ratio.high < 1 and line.prompts >= LEAST_PROMPTS else ""
    text = f'{ratio.value:.2f}×<span class="bounds">{bounds(ratio)}</span>'
    if line.system == summary.baseline:
        text = "1×"
    return f'<td class="ratio{low}" data-value="{ratio.value!r}">{text}</td><td>{drawn}</td>'


def _spoken(line: Line) -> str:
    ratio = line.speed.speed_up
    return (
        f"{line.system}: no speed-up is known"
        if ratio is None
        else f"{line.system}: {ratio.value:.2f}, {bounds(ratio)}"
    )


def system_name(summary: Summary, name: str) -> str:
    """A system's name with what is worth knowing of it at a glance."""
    system = summary.system(name)
    tags = [("ours", "slimtier")] if system.type == OURS and OURS not in name else []
    tags += [("", "baseline")] if name == summary.baseline else []
    tags += [("lossy", "lossy")] if is_lossy(system) else []
    return breakable(name) + "".join(f' <span class="tag {kind}">{word}</span>' for kind, word in tags)


def kind_of(summary: Summary, name: str) -> str:
    """The class of a system's mark where only whose it is matters."""
    system = summary.system(name)
    return "lossy" if is_lossy(system) else "ours" if system.type == OURS else "others"


def group_panels(report: Report) -> str:
    """A small table of speed-ups for each task and category, all on one scale."""
    summary = report.summary
    groups = summary.groups[1:]
    if len(groups) < 2:
        return ""
    scale = p.ratio_scale([line.speed.speed_up for line in summary.lines if line.group in groups], apart=26.0)
    return f'<div class="panels">{"".join(_panel(summary, group, scale) for group in groups)}</div>'


def _panel(summary: Summary, group: Group, scale: p.Scale) -> str:
    rows = "".join(
        f'<tr><th scope="row">{breakable(line.system)}</th>{_ratio_cells(line, summary, scale)}</tr>'
        for line in summary.of(group)
        if line.system != summary.baseline
    )
    baseline = summary.line(summary.baseline, group)
    known = f", baseline {cell(baseline.speed.tokens_per_s, significant)} tokens/s" if baseline else ""
    prompts = max(line.prompts for line in summary.of(group))
    return (
        f'<section><h3>{escape(group.name)}</h3><p class="soft">{counted(prompts, "prompt")}{known}</p>'
        '<table class="small"><thead><tr><th scope="col">system</th><th scope="col">speed-up</th>'
        f'<th scope="col" class="pictured"><span class="unseen">speed-up, drawn</span>{p.ratio_axis(scale)}</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def acceptance(report: Report) -> str:
    """The curve of each drafter, with its numbers beside."""
    numbered = [(number, line) for number, line in enumerate(report.summary.of(Group())) if line.work.by_position]
    if not numbered:
        return ""
    longest = max(len(line.work.by_position) for _, line in numbered)
    x = p.Scale(0.6, longest + 0.4, tuple(range(1, longest + 1)))
    y = p.linear_scale([0.0, max(line.work.by_position[0] for _, line in numbered)], down=True, zero=True)
    series = [p.Series(number, line.system, tuple(enumerate(line.work.by_position, 1))) for number, line in numbered]
    picture = p.curves(series, x, y, "Share of drafts whose token at each position was accepted, a line a system")
    heads = "".join(f"<th scope='col'>{position}</th>" for position in range(1, longest + 1))
    rows = "".join(_position_row(number, line, longest) for number, line in numbered)
    return (
        '<div class="beside"><figure><p class="soft">accepted ÷ drafts</p>'
        f'<div class="framed">{picture}</div><figcaption class="framed axis">draft position</figcaption></figure>'
        f'<div class="box wide dense" role="region" aria-label="Acceptance by position" tabindex="0">'
        f'<table><thead><tr><th scope="col">system</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></div>"
    )


def _position_row(number: int, line: Line, longest: int) -> str:
    values = [*line.work.by_position, *[None] * (longest - len(line.work.by_position))]
    cells = "".join(f"<td>{NONE if value is None else f'{value:.2f}'}</td>" for value in values)
    return f'<tr><th scope="row">{p.key(number)} {breakable(line.system)}</th>{cells}</tr>'


def time_split(report: Report) -> str:
    """A bar a system: where the milliseconds of a round go."""
    lines = [line for line in report.summary.of(Group()) if line.work.split_rounds and line.work.time_split_s]
    if not lines:
        return ""
    longest = max(_round_ms(line) for line in lines)
    present = [part for part in SPLIT if any(part in line.work.time_split_s for line in lines)]
    legend = "".join(
        f'<li><svg class="swatch" width="14" height="14" aria-hidden="true"><g class="p{SPLIT.index(part)}">'
        f'<rect width="14" height="14"/></g></svg>{PARTS[part]}</li>'
        for part in present
    )
    heads = "".join(f"<th scope='col'>{PARTS[part]}, ms</th>" for part in present)
    rows = "".join(_split_row(line, present, longest) for line in lines)
    return (
        f'<ul class="legend">{legend}</ul>'
        '<div class="box wide" role="region" aria-label="Time of a round" tabindex="0"><table><thead><tr>'
        '<th scope="col">system</th><th scope="col" class="pictured">a round</th><th scope="col">a round, ms</th>'
        f"<th scope='col'>tokens a round</th><th scope='col'>a token, ms</th>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _round_ms(line: Line) -> float:
    return 1000 * sum(line.work.time_split_s.values()) / line.work.split_rounds


def _split_row(line: Line, present: Sequence[str], longest: float) -> str:
    work, whole = line.work, _round_ms(line)
    sizes = {part: 1000 * work.time_split_s.get(part, 0.0) / work.split_rounds for part in present}
    parts = [(f"p{SPLIT.index(part)}", PARTS[part], size) for part, size in sizes.items() if size]
    spoken = f"{line.system}: " + ", ".join(f"{word} {size / whole:.0%}" for _, word, size in parts)
    cells = "".join(f"<td>{significant(sizes[part]) if sizes[part] else NONE}</td>" for part in present)
    tokens = work.split_tokens / work.split_rounds
    return (
        f'<tr><th scope="row">{breakable(line.system)}</th><td>{p.stack(parts, longest, spoken)}</td>'
        f"<td>{significant(whole)}</td><td>{tokens:.2f}</td><td>{significant(whole / tokens) if tokens else NONE}</td>"
        f"{cells}</tr>"
    )
