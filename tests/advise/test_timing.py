"""Measuring: on a clock that the parts themselves move, and on the real kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slimtier.advise import timing
from slimtier.advise.timing import Plan, measure, usual_heads
from slimtier.drafters.eagle.config import HeadConfig
from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.runtime import Chain, Stop, Stretch
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from tests.advise.drafts import Taught
from tests.stubs import StubTarget

HEADS = (HeadConfig("full", 96), HeadConfig("slim", 96, rank=8), HeadConfig("trimmed", 96, size=40))
FIRST, STEP, CAPTURED, BASE, TOKEN = 3.0, 2.0, 5.0, 100.0, 7.0
HEAD = {"full": 16.0, "slim": 0.5, "trimmed": 4.0}


class Clock:
    """Seconds that pass only when a part says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now / 2  # of one processor of two


class Timed(StubTarget):
    """A forward takes BASE + TOKEN a token, and CAPTURED more when it captures."""

    def __init__(self, clock: Clock, config: Any) -> None:
        super().__init__(96)
        self.clock, self.config, self.pool = clock, config, SimpleNamespace(size=1)

    def forward(self, tokens: Any, cache: Any, lengths: Any, **options: Any) -> Any:
        self.clock.now += BASE + TOKEN * len(tokens) + (CAPTURED if options.get("capture") else 0.0)
        return super().forward(tokens, cache, lengths, **options)


class TimedRuntime:
    """A draft takes FIRST, and STEP and its head a token."""

    max_positions = 256

    def __init__(self, clock: Clock, head: HeadConfig) -> None:
        self.clock, self.core, self.counted = clock, self, 0.0
        self.config = SimpleNamespace(capture=(0, 1, 2), head=head)
        self.head = SimpleNamespace(nbytes=head.rank or head.size)
        self.seconds = 0.0 if head.size == 1 else HEAD[head.kind]

    def grow(self, store: Any, length: int, capacity: int) -> int:
        return capacity

    def forward(self, stretches: Sequence[Stretch], fed_back: bool) -> None:
        assert not fed_back

    def chain(self, stretches: Sequence[Stretch], steps: Sequence[int], stop: Stop) -> list[Chain]:
        (stretch,), (count,) = stretches, steps
        assert stretch.start + len(stretch.tokens) + count <= stretch.store + 1
        assert stretch.inputs.shape == (len(stretch.tokens), 3 * 96)
        self.clock.now += FIRST + count * (STEP + self.seconds)
        self.counted += count * self.seconds * 1e9
        return [Chain((95,) * count, ())]

    def reset_timing(self) -> None:
        self.counted = 0.0

    def timing(self) -> dict[str, int]:
        return {"head": int(self.counted)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    monkeypatch.setattr(timing, "random_files", lambda config, coded: config)
    monkeypatch.setattr(timing, "NativeRuntime", lambda config, target, precision: TimedRuntime(made, config.head))
    return made


@pytest.mark.parametrize("length", [1, 4])
def test_each_part_is_found_again(clock: Clock, draft: Taught, length: int) -> None:
    target: Any = Timed(clock, draft.target.config)
    trained = EagleDrafter(TimedRuntime(clock, HEADS[1]), (0, 1, 2))  # type: ignore[arg-type]
    times = measure(target, HEADS, "q8", Plan(length, 5, 3), [trained])
    assert times.cost.target_s == tuple(BASE + TOKEN * count for count in range(1, 7))
    assert [one.seconds for one in times.heads] == [HEAD[head.kind] for head in HEADS]
    assert [one.head for one in times.heads] == list(HEADS)
    assert [one.nbytes for one in times.heads] == [0, 8, 40]
    # at length 1 the draft's beginning cannot be told from its only step
    once = FIRST if length > 1 else 0.0
    assert times.cost.body_s == FIRST + STEP - once
    assert (times.cost.overhead_s, times.cost.plain_overhead_s) == (once + CAPTURED, 0.0)
    assert times.drafts[0].body_s == FIRST + STEP + HEAD["slim"] - once
    assert times.drafts[0].overhead_s == once + CAPTURED
    assert times.had == 0.5


def test_a_large_head_pays_for_what_it_drives_out(clock: Clock, draft: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its presence adds to the body counts, though its own calls do not hold it."""

    class Slowed(TimedRuntime):
        def chain(self, stretches: Any, steps: Any, stop: Stop) -> list[Chain]:
            self.clock.now += steps[0] * (1.0 if self.seconds == HEAD["full"] else 0.0)
            return super().chain(stretches, steps, stop)

    monkeypatch.setattr(timing, "NativeRuntime", lambda config, target, precision: Slowed(clock, config.head))
    target: Any = Timed(clock, draft.target.config)
    times = measure(target, HEADS, "q8", Plan(4, 5, 3))
    assert [one.seconds for one in times.heads] == [HEAD["full"] + 1.0, HEAD["slim"], HEAD["trimmed"]]


@pytest.mark.parametrize("precision", ["q8", "fp32"])
def test_on_the_kernels(draft: Taught, precision: Any) -> None:
    target, ticks = draft.target, []
    before = Engine(target).generate([5, 6, 7], max_new_tokens=8).token_ids  # type: ignore[union-attr]
    heads = usual_heads(96, 64)
    assert [head.rank for head in heads if head.kind == "slim"] == [16, 8, 4, 2]
    times = measure(target, heads, precision, Plan(2, 3, 2), progress=lambda: ticks.append(1))
    assert len(ticks) == 1 + len(heads) + 2
    assert len(times.cost.target_s) == 4
    assert all(one > 0 for one in (*times.cost.target_s, times.cost.plain_s, *(one.seconds for one in times.heads)))
    size = {one.head: one.nbytes for one in times.heads}
    code = 1 + 4 / 32 if precision == "q8" else 4  # a scale for 32 codes
    assert size[heads[0]] == 96 * 64 * code
    assert size[heads[2]] < size[heads[1]] < size[heads[0]]
    assert Engine(target).generate([5, 6, 7], max_new_tokens=8).token_ids == before  # type: ignore[union-attr]


def test_usual_heads() -> None:
    names = [(head.kind, head.rank, head.size) for head in usual_heads(49152, 576)]
    slim = [("slim", rank, 0) for rank in (144, 72, 36, 18)]
    trimmed = [("trimmed", 0, size) for size in (8192, 16384, 32768)]
    assert names == [("full", 0, 0), *slim, *trimmed, ("routed", 72, 2048)]
    assert ("trimmed", 0, 16384) not in [(head.kind, head.rank, head.size) for head in usual_heads(16384, 64)]
    assert len(set(usual_heads(16384, 16))) == len(usual_heads(16384, 16))  # ranks of 1 are one head


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
        ({"num_speculative_tokens": 9}, "longest is 8, less than num_speculative_tokens 9"),
    ],
)
def test_a_plan_that_measures_nothing(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(**settings)


def test_a_context_that_is_too_short(draft: Taught) -> None:
    with pytest.raises(ConfigError, match="context of 256 tokens: lower longest"):
        measure(draft.target, HEADS[:1], "q8", Plan(1, 100, 1))


def test_random_tensors_are_finite_and_spread() -> None:
    from slimtier.advise.random_draft import RandomTensor

    dense = torch.from_numpy(RandomTensor((64, 40), 3).dense())
    codes = RandomTensor((64, 40), 3).codes()
    assert codes is not None
    meant = torch.from_numpy(codes.codes).float() * float(codes.scales[0, 0])
    assert codes.scales.shape == (64, 2)
    for one in (dense, meant):
        assert abs(float(one.std()) - 0.02) < 0.002
        assert abs(float(one.mean())) < 0.002
    assert RandomTensor((5,), 0).dense().tolist() == [1.0] * 5
