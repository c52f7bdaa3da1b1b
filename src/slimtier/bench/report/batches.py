"""Throughput by batch size, drawn and as a table; "" where nothing was answered in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from slimtier.bench.report import plots as p
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import NONE, breakable, significant
from slimtier.bench.statistics import speeds, speeds_table


def batches_html(report: Report) -> str:
    """A line a system over the batch sizes, beside the numbers."""
    known = _speeds(report)
    if not known:
        return ""
    sizes = sorted({size for mine in known.values() for size in mine})
    x = p.Scale(sizes[0] / 1.2, sizes[-1] * 1.2, tuple(map(float, sizes)), logarithmic=True)
    y = p.linear_scale([0.0, *(speed for mine in known.values() for speed in mine.values())], down=True, zero=True)
    series = [
        p.Series(number, name, tuple((float(size), mine[size]) for size in sizes if size in mine))
        for number, (name, mine) in enumerate(known.items())
    ]
    picture = p.curves(series, x, y, "Tokens a second at each batch size, a line a system")
    heads = "".join(f"<th scope='col'>{size}</th>" for size in sizes)
    rows = "".join(
        f'<tr><th scope="row">{p.key(number)} {breakable(name)}</th>'
        + "".join(f"<td>{significant(mine[size]) if size in mine else NONE}</td>" for size in sizes)
        + "</tr>"
        for number, (name, mine) in enumerate(known.items())
    )
    schedules = "".join(f"<p>{words}</p>" for words in schedule_words(report))
    return (
        '<div class="beside"><figure><p class="soft">tokens/s</p>'
        f'<div class="framed">{picture}</div><figcaption class="framed axis">prompts at once</figcaption></figure>'
        '<div class="box wide dense" role="region" aria-label="Tokens a second by batch size" tabindex="0">'
        f'<table><thead><tr><th scope="col">system</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>'
        f"{schedules}"
    )


def batches_markdown(report: Report) -> str:
    known = _speeds(report)
    if not known:
        return ""
    return "\n\n".join([speeds_table(known), *schedule_words(report)])


def schedule_words(report: Report) -> list[str]:
    """What each schedule says, and in the form that vLLM reads."""
    found = []
    for schedule in report.results.schedules:
        parts = [
            f"{first} to {last}: {length or 'no'} drafted tokens" if last > first else f"{first}: {length or 'no'}"
            for first, last, length in schedule.table
        ]
        table = [list(row) for row in schedule.table]
        found.append(f"Fastest at batch {', '.join(parts)}. As num_speculative_tokens_per_batch_size: {table}.")
    return found


def _speeds(report: Report) -> Mapping[str, Mapping[int, float]]:
    return speeds([asdict(row) for row in report.results.batches])
