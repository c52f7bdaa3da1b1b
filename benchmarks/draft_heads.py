"""Draft heads alone: full, slim, trimmed and routed, fused and not, at the shapes of five models.

    python -m benchmarks.draft_heads

One token's argmax. `cold`: 96 MB are read between calls, by the same threads, so that no weight is left in a cache and
no thread sleeps. `in place`: the calls follow a forward of six tokens by the target in blocks of five, as in decoding
(only at the shapes of models that are here: smollm2-135m, and gemma3-270m with --gemma). Fused: argmax in the kernel,
no logit is written; unfused: logits, then the argmax over them by numpy, as most drafters do it. All heads take turns
in every round; numbers are medians, ratios are paired within a round with a bootstrap interval. Weights are random:
their values do not matter here.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import JsonlWriter, parser, say, writer
from slimtier.bench.statistics import bootstrap_ratio, markdown_table, median, ratio_text

NAME = "draft_heads"
SHAPES = ((49152, 576), (128256, 4096), (151936, 2048), (201088, 2880), (262144, 640))
MODELS = {(49152, 576): "smollm2-135m", (262144, 640): "gemma3-270m"}
PRECISIONS = ("q8", "fp32")
TRIMMED, CANDIDATES = 32768, 2048
ROUNDS, QUICK_ROUNDS, STEPS, FLUSH_BYTES = 25, 3, 5, 96 << 20


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to the argmax of a hidden state."""

    head: str
    fused: bool
    run: Callable[[], Any]
    nbytes: int


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--gemma", action="store_true", help="also in place after gemma3-270m (253 MB are fetched)")
    arguments = options.parse_args(argv)
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    shapes = SHAPES[:1] if arguments.quick else SHAPES
    flush = flushing(arguments.threads)
    rows = []
    with writer(arguments, NAME) as out:
        for vocab, width in shapes:
            for precision in PRECISIONS:
                arms = make_arms(vocab, width, precision, arguments.threads)
                rows += measure(arms, rounds, (vocab, width, precision, "cold"), flush, 1, out)
                step = target_step(vocab, width, precision, arguments)
                if step is not None:
                    rows += measure(arms, rounds, (vocab, width, precision, "in place"), step, STEPS, out)
                say(f"{vocab} × {width} {precision}")
    print(
        markdown_table(
            ["shape", "precision", "place", "head", "fused", "ms", "full ÷ this", "unfused full ÷ this"], rows
        )
    )


def make_arms(vocab: int, width: int, precision: str, threads: int) -> list[Arm]:
    from slimtier.kernels import core, pool

    workers = pool(threads)
    down, up = packed(width // 8, width, precision), packed(vocab, width // 8, precision)
    full = packed(vocab, width, precision)
    trimmed_ids = np.arange(TRIMMED, dtype=np.int32)
    heads = {
        "full": core.DraftHead.full(full),
        "slim": core.DraftHead.slim(down, up),
        f"trimmed {TRIMMED}": core.DraftHead.trimmed(packed(TRIMMED, width, precision), trimmed_ids, vocab),
        f"routed {CANDIDATES}": core.DraftHead.routed(down, up, full, CANDIDATES),
    }
    hidden = np.random.default_rng(0).standard_normal((1, width), dtype=np.float32)
    arms = []
    for name, head in heads.items():
        arms.append(Arm(name, True, fused(head, workers, hidden), head.nbytes))
        if name in ("full", "slim"):
            arms.append(Arm(name, False, unfused(head, workers, hidden), head.nbytes))
    return arms


def flushing(threads: int) -> Callable[[], Any]:
    """A call that reads as many bytes by all threads, which are then awake, as they are in decoding."""
    from slimtier.kernels import core, pool

    matrix = packed(FLUSH_BYTES // (4 * 512), 512, "fp32")
    return fused(core.DraftHead.full(matrix), pool(threads), np.ones((1, 512), dtype=np.float32))


def packed(rows: int, width: int, precision: str) -> Any:
    """A matrix of random weights; a block of rows repeated, for a large one takes long to draw."""
    from slimtier.kernels import core
    from slimtier.models.precision import quantize8

    block = np.random.default_rng(rows).standard_normal((min(rows, 4096), width), dtype=np.float32)
    copies = -(-rows // len(block))
    if precision == "fp32":
        return core.Matrix.from_floats(np.tile(block, (copies, 1))[:rows], "f32")
    coded = quantize8(block)
    codes, scales = (np.tile(part, (copies, 1))[:rows] for part in (coded.codes, coded.scales))
    return core.Matrix.from_codes(codes.view(np.uint8), scales, None, coded.group, coded.bits)


def fused(head: Any, workers: Any, hidden: np.ndarray) -> Callable[[], Any]:
    ids, values = np.empty(1, dtype=np.int32), np.empty(1, dtype=np.float32)
    return lambda: head.argmax(workers, hidden, ids, values)


def unfused(head: Any, workers: Any, hidden: np.ndarray) -> Callable[[], Any]:
    logits = np.empty((1, head.vocab), dtype=np.float32)

    def run() -> Any:
        head.logits(workers, hidden, logits)
        return logits.argmax(1)

    return run


def target_step(vocab: int, width: int, precision: str, arguments: Any) -> Callable[[], Any] | None:
    """A forward of the tokens of a round by the model of this shape, its cache cropped back; None without one."""
    from slimtier.models.native import load_native
    from slimtier.models.resolve import resolve

    name = MODELS.get((vocab, width))
    if name is None or (name == "gemma3-270m" and not arguments.gemma):
        return None
    target = load_native(resolve(name), precision=precision, threads=arguments.threads)
    cache = target.begin(1, 128)
    target.forward(list(range(100, 164)), cache, [64])

    def step() -> None:
        hidden, _ = target.forward(list(range(STEPS + 1)), cache, [STEPS + 1])
        target.head(hidden, "argmax")
        cache.crop([64])

    return step


def measure(
    arms: Sequence[Arm],
    rounds: int,
    where: tuple[int, int, str, str],
    between: Callable[[], Any],
    steps: int,
    out: JsonlWriter,
) -> list[list[Any]]:
    """Table rows; each round takes every arm once, in an order of its own: `between`, then `steps` calls."""
    seconds = defaultdict(list)
    order = list(range(len(arms)))
    for number in range(rounds + 1):
        random.Random(number).shuffle(order)
        for index in order:
            between()
            started = time.perf_counter()
            for _ in range(steps):
                arms[index].run()
            if number:  # the first round touches the memory
                seconds[index].append((time.perf_counter() - started) / steps)
    vocab, width, precision, place = where
    rows = []
    names = {(arm.head, arm.fused): index for index, arm in enumerate(arms)}
    for index, arm in enumerate(arms):
        against = {
            "full": bootstrap_ratio(seconds[names["full", True]], seconds[index]),
            "unfused_full": bootstrap_ratio(seconds[names["full", False]], seconds[index]),
        }
        middle = median(seconds[index])
        assert middle is not None
        out.write(
            "head", vocab=vocab, width=width, precision=precision, place=place, head=arm.head, fused=arm.fused,
            bytes=arm.nbytes, seconds=middle, gb_per_s=arm.nbytes / middle / 1e9, ratios=against, rounds=rounds,
        )  # fmt: skip
        cells = [ratio_text(ratio) for ratio in against.values()]
        rows.append([f"{vocab}×{width}", precision, place, arm.head, arm.fused, middle * 1e3, *cells])
    return rows


if __name__ == "__main__":
    main()
