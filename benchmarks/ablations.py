"""What each choice of a draft's training is worth: arms that differ in one thing, the same capture, data and steps.

    python -m benchmarks.ablations captured --steps 200

The base is a slim head of rank hidden / 8, started by ridge regression, an induction head and activation-weighted SVD,
trained by Muon with KL, most steps with one draft step and the last with three. Every arm has the same short budget:
the arms are compared with each other, none of them is a finished draft. Numbers are those of rows that are held out,
over the full vocabulary. --keep keeps the runs, whose drafts can be decoded with; the same command goes on where it
was broken off.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import output_path, parser, say, writer
from slimtier.bench.statistics import markdown_table

NAME = "ablations"
BASE = (
    "unroll.phases=[[1,0.8],[3,0.2]]", "loss.candidates=4096", "optimisation.optimiser=muon", "optimisation.lr=1e-3",
    "optimisation.batch_tokens=4096", "run.validation_steps=5",
)  # fmt: skip
QUICK_STEPS = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """`group`: what the arm's settings vary."""

    group: str
    name: str
    settings: tuple[str, ...] = ()


def make_arms(hidden: int, vocab: int) -> list[Arm]:
    ranks = [Arm("rank", f"d/{part}", _unless(part == 8, f"drafter.rank={hidden // part}")) for part in (4, 8, 16, 32)]
    heads = ("random", "svd", "activation-svd")
    inits = [Arm("init", name, _unless(name == heads[-1], f"init.head={name}")) for name in heads] + [
        Arm("init", "no induction head", ("init.induction_steps=0",)),
        Arm("init", "all random", ("init.head=random", "init.fc=random", "init.layer=random")),
    ]
    losses = [Arm("loss", kind, _unless(kind == "kl", f"loss.kind={kind}")) for kind in ("kl", "ce", "tv", "lk")]
    depths = [
        Arm("K", str(steps), _unless(steps == 3, f"unroll.phases=[[1,0.8],[{steps},0.2]]")) for steps in (1, 3, 5, 7)
    ]
    kinds = [Arm("head", "full", ("drafter.head=full",)), Arm("head", "slim")]
    kinds += [
        Arm("head", f"trimmed {size}", ("drafter.head=trimmed", f"drafter.size={size}"))
        for size in (8192, 16384, 32768)
        if size < vocab
    ]
    kinds.append(Arm("head", "routed", ("drafter.head=routed", f"drafter.size={min(2048, vocab)}")))
    others = [
        Arm("optimiser", "adamw", ("optimisation.optimiser=adamw",)),
        Arm("optimiser", "muon"),
        Arm("body", "one layer, of the token"),
        Arm("body", "two layers", ("drafter.layers=2",)),
        Arm("body", "last layer of the target", ("init.layer=last",)),
    ]
    return kinds + ranks + losses + depths + inits + others


def _unless(base: bool, setting: str) -> tuple[str, ...]:
    """What sets an arm apart: nothing, if it is the base."""
    return () if base else (setting,)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _options(argv)
    from slimtier.models.native import open_weights
    from slimtier.models.resolve import resolve

    config = open_weights(resolve(arguments.model)).config
    arms = choose(make_arms(config.hidden_size, config.vocab.size), arguments.groups, arguments.arms)
    steps = QUICK_STEPS if arguments.quick else arguments.steps
    done: dict[tuple[str, ...], dict[str, Any]] = {}
    rows = []
    with writer(arguments, NAME) as out:
        for arm in arms:
            settings = tuple(one.replace("=last", f"={config.num_layers - 1}") for one in arm.settings)
            if settings not in done:
                done[settings] = train_arm(arguments, arm, settings, steps)
            say(f"{arm.group} {arm.name}: acceptance length {done[settings]['after']['acceptance_length']:.3f}")
            row = {**asdict(arm), **done[settings]}
            out.write("arm", **row)
            rows.append(row)
    print(table(rows))
    if not arguments.quick:
        draw(rows, output_path(arguments, NAME).with_suffix(".png"))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("capture", type=Path, help="a directory that `slimtier capture` wrote")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--keep", type=Path, metavar="DIR", help="where the runs go, as base or GROUP_ARM")
    options.add_argument("--groups", nargs="+", metavar="NAME", help="only these: rank init loss K head optimiser body")
    options.add_argument("--arms", nargs="+", metavar="NAME", help='only these, such as full slim "trimmed 8192"')
    options.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every arm, as `slimtier train` takes it"
    )
    return options.parse_args(argv)


def choose(arms: Sequence[Arm], groups: Sequence[str] | None, names: Sequence[str] | None) -> list[Arm]:
    """The arms of these groups, of these names; None: all. SystemExit for one that is not there."""
    for asked, known in ((groups, {arm.group for arm in arms}), (names, {arm.name for arm in arms})):
        unknown = sorted(set(asked or ()) - known)
        if unknown:
            raise SystemExit(f"no {unknown[0]!r} among the arms: choose of {', '.join(sorted(known))}")
    chosen = [arm for arm in arms if (not groups or arm.group in groups) and (not names or arm.name in names)]
    if not chosen:
        raise SystemExit("none of these arms is in these groups: leave out --groups")
    return chosen


def train_arm(arguments: argparse.Namespace, arm: Arm, settings: Sequence[str], steps: int) -> dict[str, Any]:
    """Train one arm; its held-out numbers before the first step and after the last, and how long it took."""
    import torch

    from slimtier.train.config import read_config
    from slimtier.train.journal import read_lines
    from slimtier.train.run import Request, train

    torch.set_num_threads(arguments.threads)
    fixed = (f"optimisation.steps={steps}", f"optimisation.seed={arguments.seed}")
    config = read_config(None, (*BASE, *fixed, f"run.validate_every={steps}", *arguments.set, *settings))
    with _place(arguments.keep, f"{arm.group} {arm.name}" if settings else "base") as place:
        resumed = place.exists()
        started = time.perf_counter()
        request = Request(arguments.capture, arguments.model, place, config, resume=resumed)
        outcome = train(request, lambda words: None, _quiet)
        checks = [line for line in read_lines(place / "metrics.jsonl") if "validation" in line]
    return {
        "before": checks[0]["validation"],
        "after": checks[-1]["validation"],
        "steps": outcome.steps,
        "answer_tokens": outcome.answer_tokens,
        "seconds": None if resumed else time.perf_counter() - started,
    }


@contextmanager
def _place(keep: Path | None, name: str) -> Iterator[Path]:
    """Where a run goes: below `keep`, or for as long as it takes."""
    if keep is not None:
        yield keep / re.sub(r"\W+", "_", name)
        return
    with tempfile.TemporaryDirectory() as above:
        yield Path(above) / "run"


def _quiet(done: int, total: int) -> None:
    """Shards are checked in silence."""


def table(rows: Sequence[dict[str, Any]]) -> str:
    headers = [
        "varied",
        "arm",
        "top-1 at step 0, %",
        "top-1 after, % by draft step",
        "acceptance length",
        "sampled",
        "ceiling, %",
        "s",
    ]
    cells = [
        [
            row["group"],
            row["name"],
            100 * row["before"]["top1"][0],
            " ".join(f"{100 * value:.1f}" for value in row["after"]["top1"]),
            row["after"]["acceptance_length"],
            row["after"]["sampled_length"],
            100 * row["after"]["ceiling"],
            row["seconds"],
        ]
        for row in rows
    ]
    return markdown_table(headers, cells)


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """A bar of acceptance length for each arm, one panel a group."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(row["group"] for row in rows))
    figure, panels = pyplot.subplots(1, len(groups), figsize=(2.6 * len(groups), 3.4), sharey=True, squeeze=False)
    lowest = min(row["after"]["acceptance_length"] for row in rows)
    for panel, group in zip(panels[0], groups, strict=True):
        mine = [row for row in rows if row["group"] == group]
        panel.bar([row["name"] for row in mine], [row["after"]["acceptance_length"] for row in mine])
        panel.set(title=group, ylim=(max(1.0, lowest - 0.1), None))
        panel.tick_params(axis="x", rotation=60)
    panels[0][0].set_ylabel("acceptance length, held out, K = 5")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
