"""`HeadAdvice` as a table and a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.advise.head import DraftRow, HeadAdvice, HeadRow, head_name

_HEADER = ("head", "MB", "µs", "ν", "of drafting", "of round", "break-even ρ_τ", "ρ_τ", "ρ_TPS", "best K", "speed-up")


def text_of(advice: HeadAdvice) -> str:
    """The parts of a round, a line a head, the drafts that were tried, what to choose, what to know."""
    length, cost = advice.num_speculative_tokens, advice.cost
    parts = [
        f"{advice.model} at {advice.precision}, drafter at {advice.draft_precision}: with {length} drafted tokens "
        f"κ = {advice.kappa:.3f}",
        f"target of 1 token {_ms(cost.target_s[0])}, of {length + 1} {_ms(cost.target_s[length])}; "
        f"draft step without head {_ms(cost.body_s)}; round's overhead {_ms(cost.overhead_s)}; "
        f"plain step {_ms(cost.plain_s)}",
        "",
        *table([_HEADER, *(_cells(row) for row in advice.heads)]),
    ]
    if advice.drafts:
        parts += ["", *(line for draft in advice.drafts for line in _draft_lines(draft, length))]
    return "\n".join([*parts, "", _recommendation(advice), *(f"note: {note}" for note in advice.notes)])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _cells(row: HeadRow) -> tuple[str, ...]:
    ratio = f"{row.acceptance_ratio:.2f} {row.ratio_source}" if row.acceptance_ratio is not None else "-"
    return (
        head_name(row.head),
        f"{row.nbytes / 1e6:.2f}",
        f"{row.head_s * 1e6:.0f}",
        f"{row.nu:.3f}",
        f"{row.drafting_share:.0%}",
        f"{row.round_share:.0%}",
        f"{row.break_even:.3f}",
        ratio,
        "-" if row.gain is None else f"{row.gain:.3f}",
        "-" if row.length is None else str(row.length),
        "-" if row.speed_up is None else f"{row.speed_up:.2f}",
    )


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _draft_lines(draft: DraftRow, length: int) -> list[str]:
    accepted = " ".join(f"{share:.2f}" for share in draft.acceptances)
    ratio = draft.prediction_ratio
    measured = "not measured: the answers were too short"
    if draft.measured is not None and ratio is not None:
        measured = f"measured {draft.measured:.3f} (predicted ÷ measured {ratio:.3f})"
    return [
        f"{draft.path} ({head_name(draft.head)}): accepted by position {accepted}; "
        f"{draft.mean_acceptance_length:.2f} tokens a round at {length} drafted",
        f"  speed-up over plain decoding predicted {draft.predicted:.3f}, {measured}; "
        f"best draft length {draft.length} ({draft.speed_up:.2f})",
    ]


def _recommendation(advice: HeadAdvice) -> str:
    best = advice.best
    if best is None or best.speed_up is None:
        return f"recommended: no draft; none pays at the acceptance that is {advice.acceptance_source}"
    return (
        f"recommended: head {head_name(best.head)}, num_speculative_tokens {best.length}: {best.speed_up:.2f} times "
        f"plain decoding at the acceptance that is {advice.acceptance_source}"
    )
