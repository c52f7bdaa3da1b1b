"""What `slimtier route` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimtier.route.space import words_of

if TYPE_CHECKING:
    from slimtier.route.geometry import Geometry
    from slimtier.route.run import Outcome

_NUMBERS = ("r", "kl", "tv", "mismatch")


def text_of(outcome: Outcome) -> str:
    """The route, a line for each way to get one, and what a step takes."""
    file, bench = outcome.file, outcome.bench
    found, cost = file.found, file.cost
    objective = found["objective"]
    lines = [
        f"{words_of(file.route)}, by {found['method']}: {objective} {found['value']:.4g}",
        "",
        f"{'':<12} {'evaluations':>11} " + " ".join(f"{name:>9}" for name in _NUMBERS)
        + f" {'held out: ' + objective:>20} {'kl':>9} {'time':>6}",
    ]  # fmt: skip
    for name, row in outcome.measured.items():
        numbers = " ".join(f"{row['searched'][number]:9.4f}" for number in _NUMBERS)
        held = [row["held_out"].get(number) for number in (objective, "kl")]
        first, second = ("-" if value is None else f"{value:.4f}" for value in held)
        lines.append(f"{name:<12} {row['evaluations']:>11} {numbers} {first:>20} {second:>9} {row['time']:6.3f}")
    if found["random"]:
        chance = found["random"]
        lines.append(f"of {chance['trials']} random trials: mean {chance['mean']:.4g}, best {chance['best']:.4g}")
    lines.append(
        f"a step takes {cost['time_measured']:.3f} of the target's {1000 * bench.cost.whole_s:.1f} ms "
        f"({cost['time_predicted']:.3f} predicted), {cost['skipped']:.0%} of the sublayers skipped"
    )
    return "\n".join(lines)


def text_of_geometry(found: Geometry) -> str:
    """The averages, and the verdict on the slim verifier."""
    means = found.means
    path = {kind: means[f"{kind}_draft_slim"] + means[f"{kind}_slim_target"] for kind in ("kl", "tv")}
    lines = [f"{len(found.columns['usefulness'])} positions, drafter {found.drafter}, temperature 1"]
    for kind, words in (("kl", "KL, nats"), ("tv", "total variation")):
        lines.append(
            f"{words:<16} draft to target {means[f'{kind}_draft_target']:.4f}; by the slim verifier "
            f"{means[f'{kind}_draft_slim']:.4f} + {means[f'{kind}_slim_target']:.4f} = {path[kind]:.4f}"
        )
    useful = means["usefulness"]
    lines.append(
        f"usefulness       {useful:+.4f} on average, above 0 at {found.useful_share:.0%} of positions: by VIA-SD's "
        f"criterion, which knows no times, {'insert the slim verifier' if useful > 0 else 'no slim verifier'}"
    )
    return "\n".join(lines)
