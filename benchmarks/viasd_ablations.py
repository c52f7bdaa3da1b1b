"""What VIA-SD's parts are worth, one at a time: routes, skip ratios, presets, number of tiers, caches, features.

    python -m benchmarks.viasd_ablations routes --eval DIR --route ROUTE.json --route OTHER.json
    python -m benchmarks.viasd_ablations presets tiers --eval DIR

| study | arms |
| --- | --- |
| routes | exact and the paper's gate on each --route, and on routes that skip as much: uniform, random (three seeds) |
| ratios | the same gate on uniform skips of 3 to 45 % of the layers |
| presets | conservative, default and aggressive, on q4 and on --route |
| tiers | 2, 3, 4 and 5: exact, with routes nested |
| cache | margins of the gate, each with how much the target reads anew before it decides: all, or so many tokens |
| features | flush lengths: in a longer run more was drafted on the slim verifier's own features |

Everything as in benchmarks/viasd.py: the same prompts, turns and audit. There is no independent mid-size model with
this vocabulary to be had here, so that arm of the paper is not in the table. Each study has its own rows,
viasd_ablations_STUDY.jsonl, and a picture of speed against divergence beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import output_path, parser, writer
from benchmarks.prompts import evaluation_prompts, fitting, own_prompts, sample
from benchmarks.slimspec import MOST_PROMPT_TOKENS, QUICK_TOKENS, Arm, Prompts, Rows, of_arm
from benchmarks.viasd import MOST_TOKENS, PRESETS, answers, arms_table, ask
from slimtier.bench.asked import encode
from slimtier.bench.statistics import bootstrap_ratio
from slimtier.bench.worker import Worker

NAME = "viasd_ablations"
STUDIES = ("routes", "ratios", "presets", "tiers", "cache", "features")
RATIOS = (0.03, 0.1, 0.2, 0.45)
FLUSHES = (2, 5, 8, 11, 16, 23)
MARGINS = (0.2, 0.1, 0.05, 0.02)
REREADS = (None, 32, 12, 0)
NESTED = ("q4", "q8,q4", "q8,q4,{shallow}", "q8,q4,{shallow},{deep}")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _options(argv)
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(arguments.model))
    chosen = sample(evaluation_prompts(arguments.eval), arguments.per_category, arguments.seed, ())
    prompts = fitting(chosen, tokenizer, MOST_PROMPT_TOKENS)
    prompts = prompts[:3] if arguments.quick else prompts
    most = QUICK_TOKENS if arguments.quick else MOST_TOKENS
    request = {"max_tokens": most, "eos_token_ids": list(tokenizer.eos_token_ids), "sampling": {}}
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()))
        worker = stack.enter_context(Worker("native"))
        load = {"model": arguments.model, "threads": arguments.threads}
        worker.ask("load", precision=arguments.precision, runtime="native", **load)
        for study in arguments.studies:
            arms = [*_baselines(arguments.precision), *make_arms(study, arguments, place)]
            path = output_path(arguments, NAME)
            with writer(arguments, NAME, path.with_stem(f"{path.stem}_{study}")) as out:
                out.write("setting", model=arguments.model, precision=arguments.precision, study=study)
                rows = _study(study, arms, worker, prompts, request, arguments.precision, out, tokenizer)
            print(f"\n{study}\n\n{arms_table(arms, rows)}")
            plot(study, arms, rows, out.path.with_suffix(".png"))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("studies", nargs="+", choices=STUDIES)
    options.add_argument("--eval", type=Path, required=True, metavar="DIR")
    options.add_argument("--route", action="append", default=[], metavar="FILE", help="of `slimtier route`; repeatable")
    options.add_argument("--precision", default="fp32", help="of the target")
    options.add_argument("--per-category", type=int, default=1)
    options.add_argument("--model", default="smollm2-135m")
    return options.parse_args(argv)


def _study(
    study: str,
    arms: Sequence[Arm],
    worker: Worker,
    prompts: Prompts,
    request: dict[str, Any],
    precision: str,
    out: Any,
    tokenizer: Any,
) -> Rows:
    workers = {precision: worker}
    for arm in arms:
        ask(workers, arm, {**request, "max_tokens": QUICK_TOKENS}, encode(tokenizer, own_prompts()[0].text))
    rows = []
    for row in answers(workers, arms, prompts, request, precision):
        out.write("answer", **row)
        rows.append(row)
    return rows


def _baselines(precision: str) -> list[Arm]:
    return [Arm("plain", precision, {"drafter": "none"}), Arm("two tiers", precision, {"drafter": "auto"})]


def make_arms(study: str, arguments: argparse.Namespace, place: Path) -> list[Arm]:
    """The arms of a study; routes that have no name are written to `place`."""
    precision = arguments.precision

    def tiers(name: str, kind: str, route: str, **settings: Any) -> Arm:
        options = {"drafter": "auto", "tiers": kind, "route": route, "settings": settings}
        return Arm(f"{name}, {kind}", precision, options)

    if study == "routes":
        named = [(Path(route).stem, route) for route in arguments.route] + _skips(arguments, place)
        return [tiers(name, kind, route) for name, route in named for kind in ("exact", "paper")]
    if study == "ratios":
        return [tiers(f"skip {ratio:.0%}", kind, f"skip:{ratio}") for ratio in RATIOS for kind in ("exact", "paper")]
    if study == "presets":
        named = [("q4", "q4"), *((Path(route).stem, route) for route in arguments.route)]
        return [tiers(f"{name} {preset}", "paper", route, gate=preset) for name, route in named for preset in PRESETS]
    if study == "cache":
        kept = {"accept": 1.0, "escalate": 0.0}
        return [
            tiers(
                f"margin {margin}, {'all' if few is None else few} anew",
                "paper",
                "q4",
                margin=margin,
                reread=few,
                **kept,
            )
            for margin in MARGINS
            for few in REREADS
        ]
    if study == "features":
        return [tiers(f"q4, flush {flush}", "exact", "q4", flush=flush) for flush in FLUSHES]
    skips = {name: str(_thinned(arguments, place, name, share)) for name, share in (("shallow", 0.1), ("deep", 0.3))}
    return [tiers(f"{n} tiers", "exact", route.format(**skips)) for n, route in enumerate(NESTED, 3)]


def _skips(arguments: argparse.Namespace, place: Path) -> list[tuple[str, str]]:
    """Routes that skip as many layers as the first --route skips sublayers on average: uniform and random ones."""
    from slimtier.models.route_file import RouteFile

    given = RouteFile.read(Path(arguments.route[0])).route if arguments.route else None
    share = given.sublayers.count("skip") / len(given.sublayers) if given else 0.1
    named = [(f"uniform {share:.0%}", f"skip:{share}")]
    for seed in range(3):
        layers = Random(seed).sample(range(1, _layers(arguments) - 1), round(share * _layers(arguments)))
        named.append((f"random {share:.0%} ({seed})", str(_written(arguments, place, f"random{seed}", "full", layers))))
    return named


def _thinned(arguments: argparse.Namespace, place: Path, name: str, share: float) -> Path:
    """A q4 route that skips evenly spread layers; the deeper one skips those of the shallower one too."""
    inner = _layers(arguments) - 2
    order = sorted(range(inner), key=lambda i: (i * 7919) % inner)  # spread, and each prefix is in the next
    return _written(arguments, place, name, "q4", [1 + i for i in order[: round(share * inner)]])


def _written(arguments: argparse.Namespace, place: Path, name: str, action: str, skipped: Sequence[int]) -> Path:
    from slimtier.loading import RunOptions, load
    from slimtier.models.route_file import ModelIdentity, RouteFile
    from slimtier.types import Route

    target = load(arguments.model, RunOptions(precision=arguments.precision)).target
    kept: list[Any] = ["skip" if layer in skipped else action for layer in range(target.info.num_layers)]
    path = place / f"{name}.json"
    head: Any = "q8" if action == "q4" else "full"
    RouteFile(ModelIdentity.of(target), Route(tuple(kept), tuple(kept), head)).write(path)
    return path


def _layers(arguments: argparse.Namespace) -> int:
    from slimtier.models.native import open_weights
    from slimtier.models.resolve import resolve

    return open_weights(resolve(arguments.model)).config.num_layers


def plot(study: str, arms: Sequence[Arm], rows: Rows, path: Path) -> None:
    """Speed over two tiers against divergence, a point an arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for arm in arms:
        gain = bootstrap_ratio(of_arm(rows, arm.name, "tokens_per_s"), of_arm(rows, "two tiers", "tokens_per_s"))
        if gain is None:
            continue
        tokens = of_arm(rows, arm.name, "num_output_tokens")
        pairs = zip(of_arm(rows, arm.name, "divergence"), tokens, strict=True)
        divergence = 100 * sum(one * count for one, count in pairs) / sum(tokens)
        axes.plot(divergence, gain[0], "o")
        axes.annotate(arm.name, (divergence, gain[0]), textcoords="offset points", xytext=(5, 3), fontsize=7)
    axes.axhline(1.0, linewidth=0.8, color="grey")
    axes.set_xlabel("audited divergence, % of the tokens")
    axes.set_ylabel("speed ÷ two tiers")
    axes.set_title(f"{NAME}: {study} ({json.dumps(len(rows))} answers)")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
