"""What fraction of the machine's limit each kernel, a step and a speculative round reach (Williams et al. 2009).

The limit of a piece of work is the longer of two times: its weights' bytes at the rate that memory is read here, and
its multiply-adds at the rate that the processor multiplies here. Both rates are measured in the same run, in turns with
the work, since a shared machine is not the same from one second to the next.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slimtier.bench.config import Settings
from slimtier.bench.statistics import median
from slimtier.bench.systems import OURS, System
from slimtier.errors import ConfigError
from slimtier.kernels import core
from slimtier.loading import RunOptions, load
from slimtier.models.native import open_weights
from slimtier.models.precision import kernel_matrix
from slimtier.models.resolve import resolve
from slimtier.registry import DRAFTERS, settings_of

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.models.native import NativeTarget
    from slimtier.models.tensors import ModelWeights
    from slimtier.stats import Stats

READ_BYTES = 256 << 20
FLUSH_BYTES = 64 << 20  # read between two goes of a kernel, so that its weights are no longer in the caches
SQUARE, PEAK_TOKENS = 512, 24  # of the product that shows how fast the processor multiplies
SIZES = (1, 6)  # tokens: a decoding step, and a draft of five with the token before it
PROMPT_TOKENS, ROUNDS, ROUND_TOKENS = 64, 15, 24
_PARTS = {
    "q, k and v": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention output": ("self_attn.o_proj",),
    "gate and up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """gb_per_s: reading memory, all threads; gmac_per_s: giga-multiply-adds a second, by the kind of weights."""

    gb_per_s: float
    gmac_per_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Reached:
    """Median seconds of a piece of work on `tokens` tokens, and what its limit is by reading and by multiplying."""

    work: str
    weights: str
    tokens: int
    seconds: float
    read_s: float
    multiply_s: float

    @property
    def fraction(self) -> float:
        return max(self.read_s, self.multiply_s) / self.seconds

    @property
    def bound(self) -> str:
        return "memory" if self.read_s >= self.multiply_s else "arithmetic"


def roofline_rows(
    systems: Sequence[System], settings: Settings, progress: Progress
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows, with their kinds, of each of ours that differs in precision or drafter.

    Raises ConfigError when none of the systems is ours on the native runtime.
    """
    ours = [system for system in systems if system.type == OURS and system.loading()["runtime"] != "hf"]
    if not ours:
        raise ConfigError("--roofline measures our own kernels: name a system of type slimtier on the native runtime")
    files = resolve(settings.model)
    for system in {(one.process(), json.dumps(one.answering())): one for one in ours}.values():
        precision, asked = system.loading()["precision"], system.answering()
        loaded = load(files, RunOptions("native", precision, settings.threads))
        entry = DRAFTERS[asked["drafter"]]
        drafter = entry.build(loaded, settings_of(entry, system.settings), lambda name: load(name, RunOptions()))
        plain = asked["drafter"] == "none"
        target: Any = loaded.target
        limits, found = measure_roofline(target, open_weights(files), precision, None if plain else drafter, progress)
        yield "limits", {"system": system.name, **asdict(limits)}
        for one in found:
            yield "reached", {"system": system.name, **asdict(one), "bound": one.bound, "fraction": one.fraction}


def measure_roofline(
    target: NativeTarget,
    weights: ModelWeights,
    precision: str,
    drafter: Drafter | None,
    progress: Progress,
    rounds: int = ROUNDS,
) -> tuple[Limits, list[Reached]]:
    """The limits, and what every kernel of the model, a plain step, a verification and a round reach."""
    jobs = [
        *_kernels(target, weights, precision),
        *_passes(target),
        *(_rounds(target, drafter) if drafter is not None else ()),
    ]
    kinds = dict.fromkeys(kind for job in jobs for kind in job.macs)
    reading, multiplying = memory_reader(target.pool.size), _multipliers(target, list(kinds))
    reads: list[float] = []
    rates: dict[str, list[float]] = {kind: [] for kind in multiplying}
    seconds: list[list[float]] = [[] for _ in jobs]
    for number in range(rounds):
        reads.append(READ_BYTES / 1e9 / reading())
        for kind, multiply in multiplying.items():
            rates[kind].append(multiply())
        for place, job in enumerate(jobs):
            seconds[place].append(job.run())
        progress(number + 1, rounds)
    limits = Limits(max(reads), {kind: max(found) for kind, found in rates.items()})
    return limits, [job.reached(median(found) or 0.0, limits) for job, found in zip(jobs, seconds, strict=True)]


@dataclass(frozen=True, slots=True)
class _Job:
    """`run`: seconds of one go. `bytes` and `macs` by kind of weights."""

    work: str
    weights: str
    tokens: int
    bytes: int
    macs: dict[str, int]
    run: Callable[[], float]

    def reached(self, seconds: float, limits: Limits) -> Reached:
        multiply = sum(macs / 1e9 / limits.gmac_per_s[kind] for kind, macs in self.macs.items())
        return Reached(self.work, self.weights, self.tokens, seconds, self.bytes / 1e9 / limits.gb_per_s, multiply)


def memory_reader(threads: int) -> Callable[[], float]:
    """Seconds to read READ_BYTES by torch's sum, the better of two; torch is left with one thread."""
    import torch

    values = torch.ones(READ_BYTES // 4)

    def read() -> float:
        torch.set_num_threads(threads)
        found = min(_seconds(values.sum) for _ in range(2))
        torch.set_num_threads(1)
        return found

    return read


def _multipliers(target: NativeTarget, kinds: Sequence[str]) -> dict[str, Callable[[], float]]:
    """Giga-multiply-adds a second by kind of weights, by our kernel on a matrix that stays in the caches; for float32
    by torch's product of matrices, where that is faster."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.standard_normal((PEAK_TOKENS, SQUARE), dtype=np.float32)
    out = np.empty((PEAK_TOKENS, SQUARE), np.float32)
    made: dict[str, Callable[[], float]] = {}
    for kind in kinds:
        matrix = square_matrix(kind, rng)

        def multiply(kind: str = kind, matrix: Any = matrix) -> float:
            ours = min(_seconds(lambda: matrix.linear(target.pool, x, out)) for _ in range(5))
            rate = PEAK_TOKENS * SQUARE * SQUARE / 1e9 / ours
            return max(rate, _torch_rate(target.pool.size)) if kind == "f32" else rate

        made[kind] = multiply
    return made


def square_matrix(kind: str, rng: Any) -> Any:
    """A random matrix [SQUARE, SQUARE] of the kind."""
    import numpy as np

    if kind not in ("q8", "q4"):
        return core.Matrix.from_floats(rng.standard_normal((SQUARE, SQUARE), dtype=np.float32), kind)
    bits = int(kind[1])
    codes = rng.integers(0, 2**bits, (SQUARE, SQUARE)).astype(np.uint8)
    scales = rng.random((SQUARE, SQUARE // 32), dtype=np.float32)
    return core.Matrix.from_codes(codes, scales, scales if bits == 4 else None, 32, bits)


def _torch_rate(threads: int) -> float:
    import torch

    square = torch.ones(SQUARE, SQUARE)
    torch.set_num_threads(threads)
    seconds = min(_seconds(lambda: square @ square) for _ in range(2))
    torch.set_num_threads(1)
    return SQUARE**3 / 1e9 / seconds


def _kernels(target: NativeTarget, weights: ModelWeights, precision: str) -> Iterator[_Job]:
    """The products of the first layer and the head, each with its weights read from memory."""
    import numpy as np

    flush = np.ones(FLUSH_BYTES // 4, np.float32)
    matrices = {
        work: [kernel_matrix(weights.tensors[f"model.layers.0.{name}.weight"], precision, "layer")[0] for name in names]
        for work, names in _PARTS.items()
    }
    matrices["head"] = [target.vocab_matrices["head"]]
    for (work, several), tokens in itertools.product(matrices.items(), SIZES):
        inputs = np.ones((tokens, several[0].k), np.float32)
        outputs = [np.empty((tokens, matrix.n), np.float32) for matrix in several]

        def run(several: Any = several, inputs: Any = inputs, outputs: Any = outputs) -> float:
            flush.sum()
            return _seconds(
                lambda: [m.linear(target.pool, inputs, out) for m, out in zip(several, outputs, strict=True)]
            )

        yield _job(work, several, tokens, run)


def _passes(target: NativeTarget) -> Iterator[_Job]:
    """A forward of all layers with the head's argmax, after a prompt."""
    prompt = [7 * place % target.info.vocab_size for place in range(PROMPT_TOKENS)]
    cache = target.begin(1, PROMPT_TOKENS + max(SIZES))
    target.forward(prompt, cache, [PROMPT_TOKENS])
    for tokens in SIZES:

        def run(fed: Sequence[int] = tuple(prompt[:tokens])) -> float:
            def step() -> None:
                hidden, _ = target.forward(list(fed), cache, [len(fed)])
                target.head(hidden, "argmax")

            return min(_seconds_then(step, lambda: cache.crop([PROMPT_TOKENS])) for _ in range(2))

        work = "a plain step" if tokens == 1 else f"verifying {tokens - 1} drafted tokens"
        yield _pass(work, target, tokens, run)


def _rounds(target: NativeTarget, drafter: Drafter) -> Iterator[_Job]:
    """A whole round of drafting and verifying, the loop's own work included: an answer's seconds by its rounds."""
    from slimtier.engine import Engine

    engine = Engine(target, drafter, num_speculative_tokens=max(SIZES) - 1)
    prompt = [7 * place % target.info.vocab_size for place in range(PROMPT_TOKENS)]

    def answer() -> Stats:
        drafter.reset()
        result: Any = engine.generate(prompt, max_new_tokens=ROUND_TOKENS, ignore_eos=True)
        stats: Stats = result.stats
        return stats

    def run() -> float:
        stats = answer()
        return (stats.time_split_s["draft"] + stats.time_split_s["verify"]) / max(1, stats.num_target_calls)

    first = answer()  # a drafter may propose less than it could
    fed = 1 + round(first.num_draft_tokens / max(1, first.num_target_calls))
    yield _pass(f"a round that verifies {fed} tokens", target, fed, run)


def _pass(work: str, target: NativeTarget, tokens: int, run: Callable[[], float]) -> _Job:
    """The limit of a round is that of its verification: drafting is what speculation adds."""
    macs = {kind: tokens * count for kind, count in target.step_macs.items()}
    return _Job(work, " and ".join(macs), tokens, target.info.weight_bytes, macs, run)


def _job(work: str, matrices: Sequence[Any], tokens: int, run: Callable[[], float]) -> _Job:
    macs: dict[str, int] = {}
    for matrix in matrices:
        macs[matrix.kind] = macs.get(matrix.kind, 0) + tokens * matrix.n * matrix.k
    kinds = " and ".join(macs)
    return _Job(work, kinds, tokens, sum(matrix.nbytes for matrix in matrices), macs, run)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds_then(work: Callable[[], Any], then: Callable[[], Any]) -> float:
    found = _seconds(work)
    then()
    return found
