"""What a run came to, for a terminal and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slimtier.bench.results import read_results
from slimtier.bench.statistics import markdown_table, speeds, speeds_table
from slimtier.jsonl import read_rows


@dataclass(frozen=True, slots=True)
class Outcome:
    """`values`: plain JSON values; `text`: the same to be read; `defects`: how many an exactness run found."""

    values: dict[str, Any]
    text: str
    defects: int = 0


def outcome_of(path: Path, mode: str) -> Outcome:
    """What a results file comes to."""
    if mode == "compare":
        return _compared(path)
    rows = list(read_rows(path))

    def of(kind: str) -> list[Any]:
        return [row for row in rows if row["kind"] == kind]

    if mode == "scaling":
        values = {"batches": of("batch"), "schedules": of("schedule")}
        return Outcome(values, _scaling_text(values))
    if mode == "roofline":
        values = {"limits": of("limits"), "reached": of("reached")}
        return Outcome(values, _roofline_text(values))
    counts, draws = of("exactness"), of("draws")
    defects = sum(row["defects"] for row in counts) + sum(row["verdict"] == "defect" for row in draws)
    found = {"pairs": counts, "divergences": of("divergence"), "draws": draws, "defects": defects}
    return Outcome(found, _exactness_text(found), defects)


def _compared(path: Path) -> Outcome:
    from slimtier.bench.report.content import report_of
    from slimtier.bench.report.markdown import brief

    report = report_of(read_results([path]))
    summary = report.summary
    systems = [asdict(line) for line in summary.lines]
    return Outcome({"model": summary.model, "baseline": summary.baseline, "systems": systems}, brief(report))


def _roofline_text(outcome: dict[str, Any]) -> str:
    parts = []
    for limits in outcome["limits"]:
        rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in limits["gmac_per_s"].items())
        parts.append(f"{limits['system']}: reads {limits['gb_per_s']:.1f} GB/s; giga-multiply-adds a second: {rates}")
        rows = [
            [row["work"], row["weights"], row["tokens"], 1e3 * row["seconds"], row["bound"], f"{row['fraction']:.0%}"]
            for row in outcome["reached"]
            if row["system"] == limits["system"]
        ]
        parts.append(markdown_table(["work", "weights", "tokens", "ms", "bound by", "of the limit"], rows))
    return "\n\n".join(parts)


def _scaling_text(outcome: dict[str, Any]) -> str:
    table = speeds_table(speeds(outcome["batches"]))
    lines = [
        f"vLLM's num_speculative_tokens_per_batch_size: {row['num_speculative_tokens_per_batch_size']}"
        for row in outcome["schedules"]
    ]
    return "\n\n".join([table, *lines])


def _exactness_text(outcome: dict[str, Any]) -> str:
    heads = ("compared", "identical", "near_ties", "defects", "lossy")
    rows = [[row["system"], row["reference"], *(row[head] for head in heads)] for row in outcome["pairs"]]
    streams = markdown_table(["system", "reference", *(head.replace("_", "-") for head in heads)], rows)
    parts = [
        f"{row['system']}, {row['task']} {row['item']}: token {row['position']} is {row['token']}, "
        f"{row['reference']} has {row['wanted']} ({row['verdict']}{_gap(row)})"
        for row in outcome["divergences"]
    ]
    draws = markdown_table(
        ["draws with a drafter that accepts", "draws", "acceptance rate", "p of the chi-square test", "verdict"],
        [
            [row["accepts"], row["draws"], row["acceptance_rate"], row["p_value"], row["verdict"]]
            for row in outcome["draws"]
        ],
    )
    verdict = f"{outcome['defects']} defects" if outcome["defects"] else "no defect"
    return "\n\n".join([streams, *(["\n".join(parts)] if parts else []), draws, verdict])


def _gap(row: dict[str, Any]) -> str:
    return "" if row["gap"] is None else f", gap {row['gap']:.1e}, logits differ by {row['difference']:.1e}"
