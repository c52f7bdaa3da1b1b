"""What a run came to, for a terminal and for machines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from slimtier.bench.results import read_results
from slimtier.bench.statistics import markdown_table
from slimtier.jsonl import read_rows


def outcome_of(path: Path, mode: str) -> dict[str, Any]:
    """Plain JSON values of a results file; "defects": how many an exactness run found."""
    if mode == "compare":
        from slimtier.bench.report.content import report_of

        report = report_of(read_results([path]))
        lines = [asdict(line) for line in report.summary.lines]
        return {"model": report.summary.model, "baseline": report.summary.baseline, "systems": lines}
    rows = list(read_rows(path))

    def of(kind: str) -> list[Any]:
        return [row for row in rows if row["kind"] == kind]

    if mode == "scaling":
        return {"batches": of("batch"), "schedules": of("schedule")}
    if mode == "roofline":
        return {"limits": of("limits"), "reached": of("reached")}
    counts, draws = of("exactness"), of("draws")
    defects = sum(row["defects"] for row in counts) + sum(row["verdict"] == "defect" for row in draws)
    return {"pairs": counts, "divergences": of("divergence"), "draws": draws, "defects": defects}


def text_of(outcome: dict[str, Any], mode: str, path: Path) -> str:
    """The same to be read."""
    if mode == "compare":
        from slimtier.bench.report.content import report_of
        from slimtier.bench.report.markdown import brief

        return brief(report_of(read_results([path])))
    return {"scaling": _scaling_text, "roofline": _roofline_text, "exactness": _exactness_text}[mode](outcome)


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
    from slimtier.bench.scaling import speeds

    known = speeds(outcome["batches"])
    batches = sorted({batch for mine in known.values() for batch in mine})
    rows = [[name, *(mine.get(batch) for batch in batches)] for name, mine in known.items()]
    table = markdown_table(["tokens/s at batch", *map(str, batches)], rows)
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
