"""Trains a draft online in a given time, for a machine that is lent by the minute.

    python -m tools.train_in_minutes prompts.jsonl --out run --minutes 7 --device cuda --precision bf16 \\
        --set answers.rows=512 --set optimisation.batch_tokens=16384

A pilot of a few steps tells what the start and a step of each phase of `unroll.phases` take; the run that follows has
as many steps as fit into what is left of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from slimtier.errors import SlimtierError

_PILOT_STEPS = 6  # of each phase, of which the first two, where memory is taken and kernels are chosen, do not count
_SPARE = 0.95


def main(given: Sequence[str] | None = None) -> int:
    """Train; 1 after an error."""
    arguments = _parse(given)
    started = time.monotonic()
    try:
        steps = _train(arguments, started)
    except SlimtierError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{steps} steps in {(time.monotonic() - started) / 60:.1f} minutes: {arguments.out / 'draft'}")
    return 0


def _train(arguments: argparse.Namespace, started: float) -> int:
    from slimtier.cli.common import prompts_to_answer
    from slimtier.loading import RunOptions, load
    from slimtier.train.config import read_config
    from slimtier.train.online import Online
    from slimtier.train.run import Request, train

    config = read_config(arguments.config, arguments.set)
    prompts = prompts_to_answer(arguments.prompts, arguments.held_out)
    loaded = load(arguments.model, RunOptions("auto", arguments.precision, arguments.threads, arguments.device))
    online = Online(loaded, prompts)
    phases = [(int(steps), share) for steps, share in config.unroll.phases]

    def run(out: Path, this: Any) -> float:
        begun = time.monotonic()
        train(Request(None, arguments.model, out, this, device=arguments.device, online=online), _say, _quiet)
        return time.monotonic() - begun

    with tempfile.TemporaryDirectory() as place:
        short = replace(
            config,
            optimisation=replace(config.optimisation, steps=_PILOT_STEPS * len(phases)),
            unroll=replace(config.unroll, phases=tuple((float(steps), 1.0) for steps, _ in phases)),
            run=replace(config.run, log_every=1, validate_every=10**9, checkpoint_every=10**9),
        )
        whole = run(Path(place), short)
        seconds = step_seconds(Path(place) / "metrics.jsonl")
    typical = {steps: median(each[2:]) for steps, each in seconds.items()}
    overhead = whole - sum(map(sum, seconds.values()))
    left = arguments.minutes * 60 * _SPARE - (time.monotonic() - started)
    count = steps_that_fit(left - overhead, phases, typical)
    _say(f"a start takes {overhead:.0f} s, a step {typical}: {count} steps")
    run(arguments.out, replace(config, optimisation=replace(config.optimisation, steps=count)))
    return count


def step_seconds(metrics: Path) -> dict[int, list[float]]:
    """Seconds of each step, by the number of draft steps."""
    seconds: dict[int, list[float]] = defaultdict(list)
    before = 0
    for line in map(json.loads, metrics.read_text(encoding="utf-8").splitlines()):
        if "tokens_per_s" in line:
            seconds[line["draft_steps"]].append((line["answer_tokens"] - before) / line["tokens_per_s"])
            before = line["answer_tokens"]
    return dict(seconds)


def steps_that_fit(seconds: float, phases: Sequence[tuple[int, float]], typical: dict[int, float]) -> int:
    """How many steps take `seconds`, when their shares of draft steps are those of `phases`."""
    shares = sum(share for _, share in phases)
    mean = sum(share / shares * typical[steps] for steps, share in phases)
    if seconds < _PILOT_STEPS * mean:
        raise SystemExit(f"{seconds:.0f} s are left for steps of {mean:.2f} s: give more --minutes")
    return int(seconds / mean)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _quiet(done: int, total: int) -> None:
    pass


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_in_minutes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="of all, the pilot and the start included")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="q8", help="of the model; bf16 or fp32 on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--held-out", type=Path, help="evaluation data: prompts like it are dropped")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
