"""Pictures of a search and of an analysis (extra `route`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimtier.route.geometry import Geometry
    from slimtier.route.run import Outcome

_COLOURS = {"random": "0.7", "bayesian": "tab:blue", "swap": "tab:cyan"}


def draw_search(outcome: Outcome, picture: Path) -> str | None:
    """Time against divergence, all trials and baselines; why there is no picture, if there is none."""
    if (reason := _missing(picture)) is not None:
        return reason
    pyplot = _pyplot()
    bench, objective = outcome.bench, outcome.bench.plan.search.objective
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for proposal, colour in _COLOURS.items():
        some = [one for one in outcome.trials if one.proposal == proposal]
        if some:
            times = [bench.cost.ratio(bench.space.route(one.levels)) for one in some]
            axes.scatter(
                times, [one.value for one in some], s=14, color=colour, label=f"{proposal}, {len(some)} trials"
            )
    for name, row in outcome.measured.items():
        axes.scatter(row["time"], row["searched"][objective], s=60, marker="x")
        axes.annotate(name, (row["time"], row["searched"][objective]), textcoords="offset points", xytext=(5, 4))
    points = [(bench.cost.ratio(bench.space.route(one.levels)), one.value) for one in outcome.trials]
    points += [(row["time"], row["searched"][objective]) for row in outcome.measured.values()]
    axes.step(*zip(*front(points), strict=True), where="post", color="0.4", linewidth=0.8, label="Pareto front")
    axes.set(xlabel="time of a step ÷ the target's (predicted)", ylabel=f"{objective} on the calibration text")
    axes.set_yscale("log" if all(one.value > 0 for one in outcome.trials) else "linear")
    axes.set_title(f"{bench.identity.name}, {bench.identity.precision}")
    axes.legend()
    _save(pyplot, figure, picture)
    return None


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (time, divergence) that no other is better than in both, from the fastest on."""
    kept: list[tuple[float, float]] = []
    for time, divergence in sorted(points):
        if not kept or divergence < kept[-1][1]:
            kept.append((time, divergence))
    return kept


def draw_geometry(found: Geometry, picture: Path) -> str | None:
    """The direct way from draft to target against the way by the slim verifier, position by position, and how useful
    the slim verifier is; why there is no picture, if there is none."""
    if (reason := _missing(picture)) is not None:
        return reason
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    direct = found.columns["kl_draft_target"]
    path = [a + b for a, b in zip(found.columns["kl_draft_slim"], found.columns["kl_slim_target"], strict=True)]
    most = max([*direct, *path, 1e-6])
    left.scatter(direct, path, s=8)
    left.plot([0.0, most], [0.0, most], color="0.5", linewidth=0.8)
    left.set(xlabel="KL(draft ‖ target)", ylabel="KL(draft ‖ slim) + KL(slim ‖ target)")
    left.set_title(f"the way by the slim verifier is shorter at {found.shorter_share:.0%}")
    right.plot(sorted(found.columns["usefulness"], reverse=True))
    right.axhline(0.0, color="0.5", linewidth=0.8)
    right.set(xlabel="positions, the most useful first", ylabel="C(q‖p) − C(u‖p) − C(q‖u)")
    right.set_title(f"useful at {found.useful_share:.0%}, on average {found.means['usefulness']:+.3g}")
    _save(pyplot, figure, picture)
    return None


def _missing(picture: Path) -> str | None:
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return f"{picture.name} is not drawn, matplotlib is not installed: pip install 'slimtier[route]'"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, picture: Path) -> None:
    figure.tight_layout()
    part = picture.with_suffix(".part.png")
    figure.savefig(part, dpi=120)
    pyplot.close(figure)
    part.replace(picture)
