"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from slimtier.bench.doubts import Finding
from slimtier.bench.report import evidence, tables
from slimtier.bench.report.batches import batches_html
from slimtier.bench.report.content import Report
from slimtier.bench.report.quality_html import quality_panels, quality_table
from slimtier.bench.report.samples import samples_html
from slimtier.bench.report.style import CSS, SCRIPT
from slimtier.bench.report.words import DEFINITIONS, OWN_DEFINITIONS, facts, provenance_facts

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

# what stands under the titles
_SPEED = (
    "Speed-up is tokens/s ÷ that of {} on the same prompt, the median over prompts with its 95 % interval; other "
    "columns are medians over answers. Filled dots are slimtier's systems, rings are others, dashed rings are lossy. A "
    "value whose whole interval is below 1, with six prompts or more, is in bold."
)
_ACCEPTANCE = (
    "How often the draft's first, second, … token was accepted. A drafter that chooses its length drafts the later "
    "positions less often, and its line falls for that too."
)
_TIME = "A bar's length is the mean time of a round. A plain system's round is one token."
_QUALITY = (
    "Each answer's score minus that of the baseline's answer to the same prompt, their mean with its 95 % interval. A "
    "system is not worse when the interval lies above the negative margin. Vertical lines are those intervals, drawn "
    "around the baseline's value."
)
_SAMPLES = "Prompts are chosen by speed-up, not by hand. Hold the pointer over a token for its number."
_EXACTNESS = (
    "Where answers part, and whether the logits explain it: a near-tie is two tokens as good as equal, anything else "
    "of a lossless system is a defect."
)


def page(report: Report) -> str:
    """The whole page; the same results give the same bytes."""
    sections = [(name, title, body) for name, title, body in _sections(report) if body]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    bodies = "".join(f'<section id="{name}"><h2>{title}</h2>{body}</section>' for name, title, body in sections)
    title = f"Decoding {report.summary.model}"
    files = ", ".join(source.file for source in report.results.sources)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: slimtier report</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{CSS}</style>\n</head>\n'
        f"<body>\n<header><h1>{escape(title)}</h1>"
        f'<p class="facts">{escape(" · ".join(facts(report)))}</p>{_verdict(report)}'
        f'<nav aria-label="Contents">{links}</nav></header>\n<main>{bodies}</main>\n'
        f"<footer>Made by slimtier report from {escape(files)}.</footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _verdict(report: Report) -> str:
    found = report.findings
    parts = [
        ("for", "For slimtier", found.favour),
        ("against", "Against slimtier", found.against),
        ("doubts", "Doubts about the measurement", found.doubts or (Finding("none", "None was found."),)),
    ]
    return '<div class="verdict">' + "".join(_card(*part) for part in parts) + "</div>"


def _card(kind: str, title: str, findings: Iterable[Finding]) -> str:
    items = "".join(f"<dt>{escape(one.figure)}</dt><dd>{escape(one.text)}</dd>" for one in findings)
    return f'<section class="{kind}"><h2>{title}</h2><dl>{items}</dl></section>'


def _sections(report: Report) -> Sequence[tuple[str, str, str]]:
    """(id, title, HTML); one that is empty is left out of the page."""
    quality = quality_panels(report) + quality_table(report)
    return (
        ("speed", "Speed", _after(_SPEED.format(escape(report.summary.baseline)), tables.speed_table(report))),
        (
            "tasks",
            "Speed by task",
            _after("All on one scale; the dashed line is the baseline.", tables.group_panels(report)),
        ),
        ("acceptance", "Acceptance by draft position", _after(_ACCEPTANCE, tables.acceptance(report))),
        ("time", "Where the time of a round goes", _after(_TIME, tables.time_split(report))),
        ("quality", "Quality against speed", _after(_QUALITY, quality)),
        ("samples", "Who decided each token", _after(_SAMPLES, samples_html(report))),
        ("batches", "Throughput by batch size", batches_html(report)),
        ("exactness", "Exactness", _after(_EXACTNESS, evidence.exactness(report))),
        ("noise", "Noise", evidence.control(report)),
        ("systems", "Systems", evidence.systems_table(report) + evidence.failures_list(report)),
        ("provenance", "Where the numbers are from", _provenance(report)),
        ("definitions", "Definitions", _terms({**DEFINITIONS, **OWN_DEFINITIONS})),
    )


def _after(words: str, body: str) -> str:
    return f"<p>{words}</p>{body}" if body else ""


def _provenance(report: Report) -> str:
    parts = []
    for source in report.results.sources:
        config = json.dumps(source.run.config, indent=1, ensure_ascii=False, sort_keys=True)
        parts.append(
            f"<h3>{escape(source.file)}</h3>{_terms(provenance_facts(source))}"
            f"<details><summary>All settings</summary><pre>{escape(config)}</pre></details>"
        )
    return "".join(parts)


def _terms(terms: dict[str, Any]) -> str:
    items = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(text))}</dd>" for name, text in terms.items())
    return f'<dl class="terms">{items}</dl>'
