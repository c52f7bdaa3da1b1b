"""Answers side by side, their tokens marked by who decided them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from slimtier.bench.findings import is_lossy, plain_of
from slimtier.bench.report.content import Report
from slimtier.bench.report.words import breakable, percent, significant
from slimtier.bench.result_rows import Answer
from slimtier.bench.statistics import first_difference
from slimtier.bench.summary import OURS, Prompt, tokens_per_s

MOST_TOKENS = 200
MOST_SYSTEMS = 4
TARGET, DRAFTER, UNTOLD = "target", "drafter", "not told"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt. `why`: what it was chosen for; `text`: the prompt, where the results have it."""

    why: str
    prompt: Prompt
    category: str
    text: str | None
    answers: tuple[Answer, ...]


def samples(report: Report) -> tuple[Sample, ...]:
    """The prompts on which our best system gains as much as usual, the least and the most, so that none is chosen by
    hand; () when no answer tells who decided its tokens."""
    systems = _systems(report)
    told = {
        answer.place.prompt
        for name in systems
        for answer in report.answers.of(name)
        if set(answer.output.deciders) - {TARGET}
    }
    best, summary = report.findings.best, report.summary
    if best is None or not told:
        return ()
    reference = summary.baseline if best != summary.baseline else plain_of(summary, summary.system(best))
    ratios = report.answers.prompt_ratios(best, reference, tokens_per_s) if reference else {}
    ranked = sorted((ratio, prompt) for prompt, ratio in ratios.items() if prompt in told)
    if not ranked:
        return tuple(_sample(report, "no speed-up is known", prompt, systems) for prompt in sorted(told)[:3])
    chosen = {ranked[len(ranked) // 2]: "usual gain", ranked[0]: "least gain", ranked[-1]: "most gain"}
    if len(chosen) == 1:
        chosen = dict.fromkeys(chosen, "the only prompt")
    return tuple(
        _sample(report, f"{why}, {best} {ratio:.2f}× {reference}", prompt, systems)
        for (ratio, prompt), why in chosen.items()
    )


def _systems(report: Report) -> list[str]:
    """The baseline, our best, the fastest other and a lossy one, else the next of ours."""
    summary = report.summary
    lines = sorted(
        summary.of(summary.groups[0]),
        key=lambda line: line.speed.speed_up.value if line.speed.speed_up else 0.0,
        reverse=True,
    )
    ours = [line.system for line in lines if summary.system(line.system).type == OURS]
    others = [line.system for line in lines if summary.system(line.system).type != OURS]
    lossy = [name for name in ours if is_lossy(summary.system(name))]
    wanted = [summary.baseline, report.findings.best, *others[:1], *lossy[:1], *ours]
    present = {line.system for line in lines}
    return [name for name in dict.fromkeys(wanted) if name in present][:MOST_SYSTEMS]


def _sample(report: Report, why: str, prompt: Prompt, systems: Sequence[str]) -> Sample:
    answers = []
    for name in systems:
        found = [answer for answer in report.answers.of(name) if answer.place.prompt == prompt]
        if found:
            answers.append(min(found, key=lambda answer: (answer.place.source, answer.place.repeat)))
    everyone = [answer for answer in report.results.answers if answer.place.prompt == prompt]
    text = next((answer.output.prompt for answer in everyone if answer.output.prompt), None)
    return Sample(why, prompt, everyone[0].place.category, text, tuple(answers))


def samples_html(report: Report) -> str:
    """The section; "" when there is nothing to show."""
    chosen = samples(report)
    if not chosen:
        return ""
    classes = _classes(chosen)
    return _legend(classes) + "".join(_sample_html(sample, classes, report.summary.baseline) for sample in chosen)


def _classes(chosen: Sequence[Sample]) -> dict[str, str]:
    """Decider -> class: the target plain, the drafter first, then others as they come."""
    names = {decider for sample in chosen for answer in sample.answers for decider in answer.output.deciders}
    others = sorted(names - {TARGET, DRAFTER})
    return {TARGET: "t t0", DRAFTER: "t t1", **{name: f"t t{min(number, 3)}" for number, name in enumerate(others, 2)}}


_LOOKS = {"t t0": "no mark", "t t1": "solid underline", "t t2": "dashed underline", "t t3": "double underline"}


def _legend(classes: dict[str, str]) -> str:
    words = {TARGET: "the target (its own token)", DRAFTER: "the drafter (accepted)"}
    items = [
        f'<li><span class="{kind}">token</span> {escape(words.get(name, name))}, {_LOOKS[kind]}</li>'
        for name, kind in classes.items()
    ]
    items.append('<li><span class="t split">token</span> first that differs from the baseline, outlined and bold</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _sample_html(sample: Sample, classes: dict[str, str], baseline: str) -> str:
    task, item = sample.prompt
    where = " · ".join(dict.fromkeys((task, sample.category)))
    head = f"<h3>{escape(where)}, prompt {escape(item)} <span class='soft'>({escape(sample.why)})</span></h3>"
    asked = f"<blockquote>{escape(_cut(sample.text))}</blockquote>" if sample.text else ""
    reference = next((answer for answer in sample.answers if answer.system == baseline), None)
    articles = "".join(_answer_html(answer, reference, classes) for answer in sample.answers)
    return f'{head}{asked}<div class="outputs">{articles}</div>'


def _cut(text: str, most: int = 600) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()} …"


def _answer_html(answer: Answer, reference: Answer | None, classes: dict[str, str]) -> str:
    split = None if reference is None else first_difference(answer.output.token_ids, reference.output.token_ids)
    facts = [f"{answer.output.num_output_tokens} tokens"]
    if answer.times.tokens_per_s is not None:
        facts.append(f"{significant(answer.times.tokens_per_s)} tokens/s")
    deciders = answer.output.deciders
    if deciders:
        shares = [(name, deciders.count(name) / len(deciders)) for name in classes if name in deciders]
        facts.append("decided by " + ", ".join(f"{name} {percent(share)}" for name, share in shares))
    else:
        facts.append("does not tell who decided")
    if reference is not None and reference is not answer:
        facts.append("the baseline's tokens" if split is None else f"differs from token {split + 1} on")
    return (
        f'<article><h4>{breakable(answer.system)}</h4><p class="soft">{" · ".join(facts)}</p>'
        f'<p class="said">{_said(answer, split, classes)}</p></article>'
    )


def _said(answer: Answer, split: int | None, classes: dict[str, str]) -> str:
    output = answer.output
    if not output.pieces:
        return escape(_cut(output.text, 900))
    tokens = []
    deciders = output.deciders or (UNTOLD,) * len(output.pieces)
    for number, (piece, decider) in enumerate(zip(output.pieces, deciders, strict=True)):
        if number == MOST_TOKENS:
            tokens.append(f' <span class="soft">… {len(output.pieces) - number} more tokens</span>')
            break
        kind = classes.get(decider, classes[TARGET]) + (" split" if number == split else "")
        tokens.append(f'<span class="{kind}" title="{number + 1}: {escape(decider)}">{escape(piece)}</span>')
    return "".join(tokens)
