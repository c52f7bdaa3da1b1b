"""`TierAdvice` as a table and a few sentences."""

from __future__ import annotations

from slimtier.advise.head_text import table
from slimtier.advise.tiers import RouteRow, TierAdvice

_HEADER = ("route", "step", "agrees", "memory", "alone", "flush", "exact: predicted", "measured", "identical", "paper")


def text_of(advice: TierAdvice) -> str:
    """Baselines, a line a route, what to choose."""
    steps = ", ".join(f"{count}: {seconds * 1e3:.1f}" for count, seconds in advice.step_s.items())
    speed = advice.two_tiers / advice.plain
    return "\n".join(
        [
            f"{advice.model} at {advice.precision}, drafter {advice.drafter}: plain {advice.plain:.0f} tok/s, "
            f"two tiers {advice.two_tiers:.0f} tok/s, {speed:.2f} times plain",
            f"milliseconds of the target's pass by tokens: {steps}",
            "",
            *table([_HEADER, *(_cells(row) for row in advice.rows)]),
            "",
            "step: the slim verifier's ÷ the target's. alone, exact, paper: tokens a second ÷ two tiers; "
            "alone and paper are lossy.",
            *(_lossy(row) for row in advice.rows),
            "",
            _recommendation(advice),
        ]
    )


def _cells(row: RouteRow) -> tuple[str, ...]:
    return (
        row.route,
        f"{row.cost:.2f}",
        f"{row.agreement:.1%}",
        f"{row.extra_memory:.2f}×",
        f"{row.alone:.2f}",
        str(row.flush),
        f"{row.predicted:.2f}",
        f"{row.measured:.2f}",
        "yes" if row.identical else "NO",
        f"{row.lossy_measured:.2f}",
    )


def _lossy(row: RouteRow) -> str:
    pays = "pays" if row.lossy_cost < row.lossy_gain else "does not pay"
    sides = f"costs {row.lossy_cost:.2f}, gains {row.lossy_gain:.2f}"
    return f"{row.route}: the paper's gate {pays} by its break-even ({sides})"


def _recommendation(advice: TierAdvice) -> str:
    if advice.best is None:
        return "recommended: do not use tiers here; two tiers are as fast, or faster"
    best = advice.best
    over_plain = best.measured * advice.two_tiers / advice.plain
    return (
        f"recommended: --tiers exact --route {best.route} --set flush={best.flush}: the same tokens, "
        f"{best.measured:.2f} times two tiers and {over_plain:.2f} times plain decoding"
    )
