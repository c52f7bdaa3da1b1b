"""What stands behind the numbers: exactness, noise, the systems and what failed; "" where there is nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from slimtier.bench.report import plots as p
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import NONE, bounds, breakable, percent
from slimtier.bench.summary import NOISY


def control(report: Report) -> str:
    """The dots of the A/A control."""
    found = report.summary.control
    if found is None:
        return "<p>The baseline did not answer twice, so the noise is not known.</p>"
    verdict = "which is too noisy for small differences" if found.noisy else "so the machine was quiet enough"
    spoken = f"The baseline against itself: {found.ratio.value:.3f}, {bounds(found.ratio, 3)}"
    return (
        f"<p>{escape(report.summary.baseline)} answered {len(found.by_prompt)} prompts twice. Median ratio of the two "
        f"{found.ratio.value:.3f} (95 % interval {bounds(found.ratio, 3)}): {percent(found.noise)} from 1, "
        f"{verdict}. A dot is a prompt; the band is ±{percent(NOISY)}.</p>"
        f'<figure class="framed">{p.strip(found.by_prompt, found.ratio, NOISY, spoken)}</figure>'
    )


def exactness(report: Report) -> str:
    """Whether speculation changed the output, system by system."""
    pairs = "".join(
        f'<tr><th scope="row">{breakable(row.system)}</th><td class="words">{escape(row.reference)}</td>'
        f"<td>{row.compared}</td><td>{row.identical}</td><td>{row.near_ties}</td>"
        f"<td{' class=low' if row.defects else ''}>{row.defects}</td><td>{row.lossy}</td></tr>"
        for row in report.results.exactness
    )
    tests = "".join(
        f'<tr><th scope="row">accepted {escape(row.accepts)}</th><td class="words">{escape(row.verdict)}</td>'
        f"<td>{row.draws}</td><td>{percent(row.acceptance_rate)}</td><td>{row.p_value:.2g}</td></tr>"
        for row in report.results.draws
    )
    heads = ("system", "compared with", "answers", "identical", "near-ties", "defects", "lossy")
    found = _plain_table("Exactness", heads, pairs) if pairs else ""
    tested = ("drafter", "sampled output", "draws", "acceptance rate", "p-value")
    return found + (_plain_table("Draws", tested, tests) if tests else "")


def _plain_table(label: str, heads: Sequence[str], rows: str) -> str:
    """The second column is words."""
    named = "".join(
        f'<th scope="col"{" class=words" if number == 1 else ""}>{head}</th>' for number, head in enumerate(heads)
    )
    return (
        f'<div class="box wide" role="region" aria-label="{label}" tabindex="0"><table><thead><tr>{named}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def systems_table(report: Report) -> str:
    """What each system was, and why one did not run."""
    rows = []
    for system in report.results.systems:
        told = [f"{key} {value}" for key, value in system.options.items() if value not in (None, "", {})]
        settings = [f"{key} {value}" for key, value in system.settings.items() if value not in (None, "", {})]
        versions = [f"{key} {value}" for key, value in system.versions.items() if value]
        state = system.state if system.state == "ready" else f"{system.state}: {system.reason or 'no reason is given'}"
        load = NONE if system.load_s is None else f"{system.load_s:.1f}"
        low = "" if system.state == "ready" else " low"
        rows.append(
            f'<tr><th scope="row">{breakable(system.name)}</th><td class="words">{escape(system.type)}</td>'
            f'<td class="words long{low}">{escape(state)}</td>'
            f'<td class="words long">{escape(", ".join(told)) or NONE}</td>'
            f'<td class="words">{escape(", ".join(settings)) or NONE}</td>'
            f'<td class="words">{escape(", ".join(versions)) or NONE}</td><td>{load}</td>'
            f"<td>{report.summary.failures.get(system.name, 0)}</td></tr>"
        )
    heads = ("type", "state", "options", "settings", "versions")
    named = "".join(f'<th scope="col" class="words">{head}</th>' for head in heads)
    return (
        '<div class="box wide" role="region" aria-label="Systems" tabindex="0"><table><thead><tr>'
        f'<th scope="col">system</th>{named}<th scope="col">loading, s</th><th scope="col">failures</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def failures_list(report: Report) -> str:
    """What went wrong with single requests, the first of each system."""
    first: dict[str, str] = {}
    for failure in report.results.failures:
        where = f"{failure.task}, prompt {failure.item}"
        first.setdefault(
            failure.system, f"{where}: {failure.error.strip().splitlines()[-1] if failure.error.strip() else ''}"
        )
    if not first:
        return ""
    items = "".join(f"<li><b>{escape(name)}</b>, first on {escape(text)}</li>" for name, text in first.items())
    return f"<h3>Requests that failed</h3><ul>{items}</ul>"
