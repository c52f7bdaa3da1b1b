"""The curves of a run as a picture (extra `train`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from slimtier.train.journal import Journal, read_lines


def draw(journal: Journal, picture: Path) -> None:
    """Draw loss and agreement over the steps of a run's record; `picture` is a .png. Without matplotlib: say so."""
    if importlib.util.find_spec("matplotlib") is None:
        journal.say(f"{picture.name} is not drawn, matplotlib is not installed: pip install 'slimtier[train]'")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(journal.path)
    steps = [line for line in lines if "loss" in line]
    checks = [line for line in lines if "validation" in line]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    left.plot([line["step"] for line in steps], [line["loss"] for line in steps], linewidth=0.8)
    left.set(xlabel="step", ylabel="training loss")
    for draft_step in range(len(checks[0]["validation"]["top1"]) if checks else 0):
        values = [100 * line["validation"]["top1"][draft_step] for line in checks]
        right.plot([line["step"] for line in checks], values, marker=".", label=f"draft step {draft_step + 1}")
    right.set(xlabel="step", ylabel="top-1 agreement on held-out rows, %")
    if checks:
        right.legend()
    figure.tight_layout()
    part = picture.with_suffix(".part.png")
    figure.savefig(part, dpi=120)
    pyplot.close(figure)
    part.replace(picture)
