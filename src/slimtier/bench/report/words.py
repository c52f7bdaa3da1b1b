"""How numbers are written, which columns a table of systems has, and what the words mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from slimtier.bench.doubts import counted
from slimtier.bench.doubts import percent as percent
from slimtier.bench.report.content import Report
from slimtier.bench.results import Source
from slimtier.bench.statistics import Interval
from slimtier.bench.summary import Group, Line

NONE = "–"
PARTS = {
    "draft_layer": "draft layer",
    "draft_head": "draft head",
    "draft": "draft, not split",
    "verify": "verify",
    "sampling": "sampling",
    "other": "other",
}


@dataclass(frozen=True, slots=True)
class Column:
    """`name`: in a .csv, in raw units; `head` has the unit of a cell; `defined`: its word among the definitions."""

    name: str
    head: str
    read: Callable[[Line], float | None]
    write: Callable[[float], str]
    defined: str


def significant(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    return significant(seconds * 1000)


def mebibytes(size: float) -> str:
    return f"{size / 2**20:.0f}"


def cell(value: float | None, write: Callable[[float], str]) -> str:
    return NONE if value is None else write(value)


def breakable(name: str) -> str:
    """A name as HTML that may be broken where a reader would."""
    return re.sub(r"([/,=:_])", r"\1<wbr>", escape(name))


def bounds(interval: Interval | None, digits: int = 2) -> str:
    """The interval alone."""
    return "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


COLUMNS = (
    Column("tokens_per_s", "tokens/s", lambda line: line.speed.tokens_per_s, significant, "tokens/s"),
    Column(
        "end_to_end_tokens_per_s",
        "end-to-end tokens/s",
        lambda line: line.speed.end_to_end_tokens_per_s,
        significant,
        "end-to-end tokens/s",
    ),
    Column(
        "time_to_first_token_s",
        "first token, ms",
        lambda line: line.speed.time_to_first_token_s,
        milliseconds,
        "time to first token",
    ),
    Column(
        "time_per_output_token_s",
        "per token, ms",
        lambda line: line.speed.time_per_output_token_s,
        milliseconds,
        "time per output token",
    ),
    Column(
        "mean_acceptance_length",
        "acceptance length",
        lambda line: line.work.mean_acceptance_length,
        significant,
        "mean acceptance length",
    ),
    Column(
        "target_calls_per_token",
        "target calls per token",
        lambda line: line.work.target_calls_per_token,
        significant,
        "target calls per token",
    ),
    Column("peak_memory_bytes", "peak memory, MiB", lambda line: line.peak_memory_bytes, mebibytes, "peak memory"),
    Column("same_share", "identical answers", lambda line: line.same_share, percent, "identical answers"),
)

# as in docs/benchmarks.md, which a test compares
DEFINITIONS = {
    "tokens/s": "output tokens after the first block ÷ seconds after it: decoding alone. For plain decoding (n − 1) ÷ "
    "(t_last − t_first)",
    "end-to-end tokens/s": "all output tokens ÷ all seconds, the reading of the prompt included",
    "time to first token": "seconds from the request to the first block of tokens",
    "time per output token": "1 ÷ (tokens/s), in seconds",
    "draft": "a round in which at least one token was proposed",
    "mean acceptance length": "1 + accepted ÷ drafts: what such a round yields, its recovered or bonus token included",
    "acceptance rate": "accepted ÷ drafted tokens",
    "acceptance by position": "accepted at draft position i ÷ drafts",
    "rejection rate": "changed ÷ examined tokens (those past the first rejection are not examined)",
    "target calls per token": "forwards of the whole target after the prompt ÷ output tokens",
    "speed-up": "tokens/s of a system ÷ tokens/s of the baseline, on the same prompt",
    "peak memory": "the most that the system's process had resident while it answered, its weights included",
    "looped": "share of output tokens in an 8-gram that had stood in the output before",
    "quality": "the task's own metrics, 0 to 1; compared in pairs with the baseline",
    "log-likelihood": "mean log probability a token of an answer, as our fp32 target gives it after its prompt",
}
OWN_DEFINITIONS = {
    "identical answers": "share of a system's answers that are token for token the baseline's",
    "interval": "95 %, by a bootstrap over the prompts (2000 draws); of several repeats of a prompt the median "
    "is taken",
    "uninformative": "a score of the baseline that is not above its floor: there is nothing to lose, and it says "
    "nothing",
    "margin": "what quality may be lost and still be called not worse: 0.02 of a score, 0.05 nats a token of "
    "log-likelihood; fewer than ten pairs clear nobody",
}


def facts(report: Report) -> list[str]:
    """What a reader must know first: how much was measured, where and when."""
    run, provenances = report.results.run, [one for source in report.results.sources for one in source.provenances]
    prompts = len({answer.place.prompt for answer in report.results.answers})
    found = [
        counted(len(report.summary.of(Group())), "system"),
        counted(prompts, "prompt"),
        f"tasks {', '.join(sorted(run.tasks))}",
    ]
    found.append(f"temperature {run.temperature:g}")
    if provenances:
        first = provenances[0]
        found.append(f"{first.get('cpu')}, {_cores(first.get('cores'))}")
        found.append(str(first.get("date") or "")[:10])
        found.append(f"commit {str(first.get('commit'))[:10]}{' and changes' if first.get('dirty') else ''}")
    return [fact for fact in found if fact]


def provenance_facts(source: Source) -> dict[str, str]:
    """Who, what and when, of a file; a run that was taken up again has several dates."""
    run, told = source.run, {}
    for name in (
        "commit",
        "cpu",
        "cores",
        "isa",
        "seed",
        "argv",
        "date",
        "slimtier",
        "torch",
        "transformers",
        "python",
    ):
        values = [one.get(name) for one in source.provenances]
        told[name] = " then ".join(dict.fromkeys(_plain(value) for value in values if value is not None))
    dirty = any(one.get("dirty") for one in source.provenances)
    threads, precisions = run.config.get("threads"), _precisions(run.config)
    versions = ", ".join(
        f"{name} {told[name]}" for name in ("slimtier", "torch", "transformers", "python") if told[name]
    )
    found = {
        "model": run.model,
        "commit": told["commit"] + (", with changes that are not committed" if dirty else ""),
        "machine": ", ".join(
            part for part in (told["cpu"], _cores(told["cores"]) if told["cores"] else "", told["isa"]) if part
        ),
        "threads": "all cores" if threads == 0 else "" if threads is None else str(threads),
        "precision": precisions,
        "seed": told["seed"],
        "command": told["argv"],
        "date": told["date"],
        "versions": versions,
        "tasks": ", ".join(f"{name} (version {version})" for name, version in sorted(run.tasks.items())),
        "took": f"{source.seconds / 60:.0f} minutes" if source.seconds is not None else "the run is not complete",
    }
    return {name: text or "not told" for name, text in found.items()}


def _cores(count: Any) -> str:
    return f"{count} core" if str(count) == "1" else f"{count} cores"


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _precisions(config: Mapping[str, Any]) -> str:
    """Of the systems that have one."""
    systems = config.get("systems")
    if not isinstance(systems, Mapping):
        return str(config.get("precision") or "")
    options = {name: one.get("options") for name, one in systems.items() if isinstance(one, Mapping)}
    found = {
        name: one["precision"] for name, one in options.items() if isinstance(one, Mapping) and one.get("precision")
    }
    if len(set(found.values())) == 1:
        return str(next(iter(found.values())))
    return ", ".join(f"{name} {precision}" for name, precision in found.items())
