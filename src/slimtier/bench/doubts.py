"""What makes a measurement doubtful, in sentences; and how numbers stand in such."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slimtier.bench.results import Results
from slimtier.bench.statistics import Interval
from slimtier.bench.summary import NOISY, Summary
from slimtier.bench.worker import IDLE_LIMIT

FEW_PROMPTS = 10  # a bootstrap over fewer gives intervals that are too narrow
LOOPED = 0.1  # share of looped text from which it is worth a word


@dataclass(frozen=True, slots=True)
class Finding:
    """`figure`: the number it is about, in a few characters."""

    figure: str
    text: str


def doubts(results: Results, summary: Summary) -> Iterator[Finding]:
    """The sentences, the weightiest first."""
    control = summary.control
    if control is None:
        yield Finding("no A/A", "The baseline did not answer twice, so the noise of the machine is not known.")
    elif control.noisy:
        yield Finding(
            percent(control.noise),
            f"The machine was too noisy: the baseline against itself gave {control.ratio.value:.3f} "
            f"({bounds(control.ratio)}), more than {percent(NOISY)} from 1.",
        )
    for system in summary.systems:
        if system.state != "ready":
            yield Finding(system.state, f"{system.name}: {system.reason or 'no reason is given'}.".replace("..", "."))
        if (system.idle_cores or 0.0) > IDLE_LIMIT:
            yield Finding(
                f"{system.idle_cores:.2f} cores",
                f"The process of {system.name} kept computing while others were measured, and slowed them.",
            )
    for name, count in summary.failures.items():
        requests = "one request, which is" if count == 1 else f"{count} requests, which are"
        yield Finding(f"{count} failed", f"{name} failed on {requests} left out of its numbers.")
    yield from _thin(summary)
    yield from _sources(results)


def _thin(summary: Summary) -> Iterator[Finding]:
    baseline = summary.line(summary.baseline)
    if baseline is None:
        yield Finding("no baseline", f"{summary.baseline}, the baseline, gave no answer: no speed-up is known.")
        return
    if baseline.prompts < FEW_PROMPTS:
        yield Finding(counted(baseline.prompts, "prompt"), "Intervals from fewer than ten prompts are too narrow.")
    if (baseline.loop_share or 0.0) > LOOPED:
        yield Finding(
            percent(baseline.loop_share or 0.0),
            "Share of the baseline's output that is looped text: it is easily drafted, and flatters every drafter.",
        )


def _sources(results: Results) -> Iterator[Finding]:
    for source in results.sources:
        if source.seconds is None:
            cut = " and its last line was cut off" if source.torn else ""
            yield Finding("unfinished", f"{source.file} is of a run that is not complete{cut}.")
        if any(provenance.get("dirty") for provenance in source.provenances):
            yield Finding("uncommitted", f"{source.file} was made from code that differs from its commit.")
    machines = {(one.get("cpu"), one.get("cores")) for source in results.sources for one in source.provenances}
    if len(machines) > 1:
        named = listed(f"{cpu}, {cores} cores" for cpu, cores in sorted(machines, key=str))
        yield Finding("machines", f"The files are from different machines ({named}); ratios are within a file.")


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}×"


def bounds(interval: Interval) -> str:
    """An interval in a sentence."""
    return f"95 % interval {interval.low:.2f} to {interval.high:.2f}"


def percent(share: float) -> str:
    """Whole percents, but never 0 or 100 for what is not."""
    rounded = round(100 * share)
    return f"{100 * share:.1f} %" if rounded in (0, 100) and share not in (0.0, 1.0) else f"{rounded} %"


def signed(value: float) -> str:
    """A difference, three digits after the point."""
    return f"{value:+.3f}".replace("-", "−")


def counted(number: int, thing: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = list(names)
    return f"{', '.join(first)} and {last}" if first else last
