"""What a round is made of, measured on this machine, in place: each draft follows a forward of the target.

All parts take turns within each round, in another order each time, and what is compared is compared round by round;
the numbers are medians. A draft and a round of the loop are taken the time of at the second go, as in decoding, where
the round before was theirs too and not another's, whose weights and code the caches then hold. Drafters are of random
weights, so nothing needs to be trained, and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimtier.advise.cost_model import RoundCost
from slimtier.advise.random_draft import eagle_shape, random_files
from slimtier.drafters.eagle.config import HeadConfig
from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.runtime import Stop, Stretch
from slimtier.drafters.eagle.runtime_native import DraftPrecision, NativeRuntime
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.models.native import NativeTarget

if TYPE_CHECKING:
    from slimtier.result import Stream

_CONTEXT = 128  # tokens before the round
_NEW_SLOTS = 2  # what a draft has to catch up with: about as many tokens as a round yields
_TRIMMED = (8192, 16384, 32768)
_DIVISORS = (4, 8, 16, 32)
_CANDIDATES = 2048
_ROUTER_DIVISOR = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: heads at `num_speculative_tokens`, the target up to a draft of `longest`, this many rounds."""

    num_speculative_tokens: int = 5
    longest: int = 8
    rounds: int = 20

    def __post_init__(self) -> None:
        for name in ("num_speculative_tokens", "longest", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.longest < self.num_speculative_tokens:
            raise ConfigError(
                f"longest is {self.longest}, less than num_speculative_tokens {self.num_speculative_tokens}: raise it"
            )


@dataclass(frozen=True, slots=True)
class HeadTime:
    """A head: bytes of weights read for a token, and seconds that it adds to a draft step. These include what it does
    to the rest, whose weights a large head drives out of the cache."""

    head: HeadConfig
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of all parts. `drafts`: for each trained draft the cost of a round, its head counted in body_s.
    `had`: the share of its threads' time that the process had in the target's forwards; where it is far below 1, other
    programs were running and the numbers are theirs too."""

    cost: RoundCost
    heads: tuple[HeadTime, ...]
    drafts: tuple[RoundCost, ...]
    had: float


def usual_heads(vocab_size: int, hidden_size: int) -> tuple[HeadConfig, ...]:
    """The heads to choose from, the full one first; none twice, and none that is no smaller than the full one."""
    ranks = dict.fromkeys(max(1, hidden_size // divisor) for divisor in _DIVISORS)
    router = max(1, hidden_size // _ROUTER_DIVISOR)
    return (
        HeadConfig("full", vocab_size),
        *(HeadConfig("slim", vocab_size, rank=rank) for rank in ranks),
        *(HeadConfig("trimmed", vocab_size, size=size) for size in _TRIMMED if size < vocab_size),
        HeadConfig("routed", vocab_size, rank=router, size=min(_CANDIDATES, vocab_size)),
    )


def measure(
    target: NativeTarget,
    heads: Sequence[HeadConfig],
    precision: DraftPrecision,
    plan: Plan,
    drafters: Sequence[EagleDrafter] = (),
    progress: Callable[[], None] = lambda: None,
    between: Callable[[int], None] = lambda number: None,
) -> Times:
    """Measure the heads on drafters of random weights in the target's dimensions, at `precision`, and trained
    `drafters` as they are. `progress` is called 1 + len(heads) + plan.rounds times; `between` after each round, with
    how many there were, for what is to be measured in the same minutes.

    Raises ConfigError when the target's context is too short for that.
    """
    bench = _Bench(target, plan)
    none = HeadConfig("trimmed", target.info.vocab_size, size=1)  # as good as no head
    arms = []
    for head in (none, *heads):
        files = random_files(eagle_shape(target.config, head), coded=precision != "fp32")
        runtime = NativeRuntime(files, target, precision)
        arms.append(bench.arm(runtime, runtime.config.capture))
        progress()
    trained = [bench.arm(drafter.runtime, drafter.capture) for drafter in drafters]
    bare = EagleDrafter(arms[0].runtime, arms[0].capture)
    loops = (
        _Loop(target, bench.prompt, bare, plan.num_speculative_tokens),
        _Loop(target, bench.prompt, None, 0),
    )
    samples = _Samples()
    for number in range(-1, plan.rounds):  # the first round warms up and is not kept
        bench.round(number, arms, trained, loops, samples if number >= 0 else _Samples())
        if number >= 0:
            progress()
            between(number + 1)
    for loop in loops:
        loop.close()
    return samples.times(plan, arms, trained, heads)


@dataclass(frozen=True, slots=True, eq=False)
class _Arm:
    """A drafter beside the target, its row holding the context."""

    runtime: Any  # a NativeRuntime
    capture: tuple[int, ...]
    store: Any


@dataclass(slots=True)
class _Samples:
    """Seconds, a number a round: of the target by tokens, of each arm's draft (long, and of one token) and of its
    head's own calls in the long one, of a whole round of the loop and of a plain step; seconds that all threads had,
    and wanted, in the target's forwards."""

    target: dict[int, list[float]] = field(default_factory=dict)
    draft: dict[_Arm, list[float]] = field(default_factory=dict)
    first: dict[_Arm, list[float]] = field(default_factory=dict)
    head: dict[_Arm, list[float]] = field(default_factory=dict)
    loop: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    had: list[float] = field(default_factory=list)
    wanted: list[float] = field(default_factory=list)

    def times(self, plan: Plan, arms: Sequence[_Arm], trained: Sequence[_Arm], heads: Sequence[HeadConfig]) -> Times:
        length, bare = plan.num_speculative_tokens, arms[0]
        target_s = tuple(median(self.target[count]) for count in sorted(self.target))
        around = _between(self.loop, self.target[length + 1], self.draft[bare])
        plain_overhead = _between(self.plain, self.target[1])

        def cost(arm: _Arm) -> RoundCost:
            step, first = self._steps(arm, length)
            return RoundCost(target_s, step, around + max(0.0, first - step), plain_overhead)

        found = []
        for head, arm in zip(heads, arms[1:], strict=True):
            added = max(median(self.head[arm]), _between(self.draft[arm], self.draft[bare]))
            found.append(HeadTime(head, arm.runtime.head.nbytes, added / length))
        return Times(cost(bare), tuple(found), tuple(cost(arm) for arm in trained), sum(self.had) / sum(self.wanted))

    def _steps(self, arm: _Arm, length: int) -> tuple[float, float]:
        """A step of a draft, and the first one, which reads the target's features."""
        first = median(self.first[arm])
        return (_between(self.draft[arm], self.first[arm]) / (length - 1) if length > 1 else first), first


def _between(whole: Sequence[float], *parts: Sequence[float]) -> float:
    """The median of what the whole has beyond its parts, round by round; not below 0."""
    beyond: list[float] = [total - sum(taken) for total, taken in zip(whole, zip(*parts, strict=True), strict=True)]
    return max(0.0, median(beyond))


class _Bench:
    """The target after a context of random tokens, to which every measurement returns."""

    def __init__(self, target: NativeTarget, plan: Plan) -> None:
        positions = target.info.max_positions
        self.target, self.plan = target, plan
        self.context = min(_CONTEXT, positions // 4)
        if self.context < _NEW_SLOTS or positions < 2 * (self.context + plan.longest + 2):
            raise ConfigError(f"{target.info.name} has a context of {positions} tokens: lower longest to measure it")
        count = self.context + plan.longest + 1
        self.tokens = np.random.default_rng(0).integers(0, target.info.vocab_size, count).tolist()
        self.prompt = self.tokens[: self.context]
        self.cache = target.begin(1, count)
        target.forward(self.prompt, self.cache, [self.context])

    def arm(self, runtime: Any, capture: tuple[int, ...]) -> _Arm:
        self.cache.crop([0])
        _, streams = self.target.forward(self.prompt, self.cache, [self.context], capture=capture)
        store = runtime.grow(None, 0, self.context + _NEW_SLOTS + self.plan.longest)
        runtime.forward([Stretch(store, 0, self.prompt, torch.cat(streams, -1))], fed_back=False)
        return _Arm(runtime, capture, store)

    def round(
        self, number: int, arms: Sequence[_Arm], trained: Sequence[_Arm], loops: Sequence[_Loop], samples: _Samples
    ) -> None:
        """Every part once."""
        length, bare = self.plan.num_speculative_tokens, arms[0]
        for count in _rotated(range(1, self.plan.longest + 2), number):
            before = time.process_time()
            seconds, _ = self._verify(count)
            samples.had.append(time.process_time() - before)
            samples.wanted.append(seconds * self.target.pool.size)
            samples.target.setdefault(count, []).append(seconds)
        for arm in _rotated([*arms, *trained], number):
            self._drafted(arm, length)
            samples.draft.setdefault(arm, []).append(self._drafted(arm, length))
            samples.head.setdefault(arm, []).append(arm.runtime.core.timing()["head"] / 1e9)
        for arm in (bare, *trained):
            self._drafted(arm, 1)
            samples.first.setdefault(arm, []).append(self._drafted(arm, 1))
        samples.loop.append(loops[0].round_s())
        samples.plain.append(loops[1].round_s())

    def _verify(self, count: int, capture: Sequence[int] = ()) -> tuple[float, torch.Tensor]:
        """Seconds of a forward of `count` tokens and the argmax of each; the features of the new slots."""
        new = self.tokens[self.context : self.context + count]
        begun = time.perf_counter()
        hidden, streams = self.target.forward(new, self.cache, [count], capture=capture)
        self.target.head(hidden, "argmax")
        seconds = time.perf_counter() - begun
        self.cache.crop([self.context])
        return seconds, torch.cat([stream[:_NEW_SLOTS] for stream in streams], -1) if streams else hidden

    def _drafted(self, arm: _Arm, length: int) -> float:
        """Seconds of a draft of `length` tokens, after a forward of the target's."""
        _, features = self._verify(self.plan.num_speculative_tokens + 1, arm.capture)
        arm.runtime.core.reset_timing()
        tokens = self.tokens[self.context : self.context + len(features)]
        begun = time.perf_counter()
        arm.runtime.chain([Stretch(arm.store, self.context, tokens, features)], [length], Stop())
        return time.perf_counter() - begun


def _rotated(items: Iterable[Any], number: int) -> list[Any]:
    """Beginning with another one each round."""
    ordered = list(items)
    start = number % len(ordered)
    return ordered[start:] + ordered[:start]


class _Loop:
    """Rounds of the loop that decodes, one at a time; the answer is begun again when it ends."""

    def __init__(self, target: NativeTarget, prompt: Sequence[int], drafter: EagleDrafter | None, length: int) -> None:
        self._engine = Engine(target, drafter, num_speculative_tokens=length)
        self._prompt, self._length = list(prompt), length
        self._room = target.info.max_positions // 2
        self._stream: Stream | None = None

    def round_s(self) -> float:
        """Seconds of a round whose draft is whole, after one."""
        while True:
            if self._stream is None:
                self._stream = self._engine.stream(self._prompt, max_new_tokens=self._room, ignore_eos=True)
                next(self._stream)  # reads the prompt too
            next(self._stream, None)
            begun = time.perf_counter()
            step = next(self._stream, None)
            seconds = time.perf_counter() - begun
            if step is not None and step.drafted == self._length:
                return seconds
            self.close()

    def close(self) -> None:
        """End the answer."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
