"""What a calibration found, as a table and a few sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimtier.models.route_file import RouteFile

_HEADER = ("gate", "divergence", "p", "speed", "drafter", "slim", "target", "target calls", "worst", "prompts", "")


def text_of(file: RouteFile, out: Path) -> str:
    """A line a gate in the order of the test, what is chosen, what to know."""
    found = file.calibrated
    several = len({row["route"] for row in found["grid"]}) > 1
    rows = [_HEADER, *(_cells(row, several) for row in found["grid"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([first.ljust(widths[0]), *(map(str.rjust, rest, widths[1:]))]).rstrip() for first, *rest in rows]
    return "\n".join([*lines, "", *_sentences(found, out)])


def _cells(row: Mapping[str, Any], several: bool) -> tuple[str, ...]:
    return (
        f"{row['route']}: {row['name']}" if several else row["name"],
        f"{row['mean_loss']:.4f}",
        f"{row['p_value']:.2g}",
        "-" if row["speed_ratio"] is None else f"{row['speed_ratio']:.2f}×",
        *(f"{row['decided'][who]:.1%}" for who in ("drafter", "slim", "target")),
        f"{row['target_calls_per_token']:.3f}",
        f"{row['worst_shortfall']:.3f}",
        str(row["prompts"]),
        "certified" if row["certified"] else "",
    )


def _sentences(found: Mapping[str, Any], out: Path) -> list[str]:
    keys = ("route", "gate")
    chosen = next(row for row in found["grid"] if row["certified"] and all(row[key] == found[key] for key in keys))
    what = "mean divergence" if found["loss"] == "share" else "share of answers that differ anywhere"
    lines = [
        f"chosen: {chosen['name']} on {found['route']}; {what} at most {found['epsilon']} with confidence "
        f"{1 - found['delta']:.12g} ({found['bound']}), {found['mean_loss']:.4f} on these {found['prompts']} prompts",
        f"written to {out}: decode with --tiers calibrated --route {out}",
        f"note: that is about prompts like these, at temperature 0, of at most {found['max_prompt_tokens']} tokens and "
        f"answers of at most {found['max_new_tokens']}, with the drafter {found['drafter']} at "
        f"{found['precision']}",
    ]
    if found["speed_ratio"] is None:
        lines.append("note: no prompt was timed, so the safest gate was taken; see the setting timed")
    elif found["speed_ratio"] <= 1.0:
        lines.append("note: two tiers without a slim verifier were not slower: these tiers do not pay here")
    return lines
