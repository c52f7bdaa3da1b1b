"""The cost-aware drafter with a network beside its copies."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slimtier.drafters import auto
from slimtier.drafters.auto import Asked, AutoDrafter
from slimtier.drafters.cost import Calibration
from slimtier.drafters.eagle.drafter import Drafted
from slimtier.drafters.eagle.runtime import Stop
from slimtier.engine import Engine
from slimtier.sampling import probabilities
from slimtier.types import Draft, SamplingParams, StopParams, Verdict
from slimtier.verifiers.lossless import LosslessVerifier
from tests.decoding import decode_rows, make_row
from tests.drafters.eagle.drafts import Checked, make_drafter
from tests.drafters.test_auto import context, verdict
from tests.stubs import StubTarget, plain_tokens, speculate

PROMPT = [3, 1, 4, 1, 5]


class Sometimes(AutoDrafter):
    """Drafts by the network and by copying in turns, whatever pays, so that both happen."""

    def _ask_network(self, context: Any, limit: int, costs: Any, copy: Any) -> Any:
        return Asked(limit, Stop(go_on=0.1)) if limit and len(context.token_ids) % 3 else None


@pytest.mark.parametrize("drafter", [AutoDrafter, Sometimes])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, coupling="gumbel", seed=2),
        SamplingParams(repetition_penalty=1.4),
    ],
    ids=["greedy", "gumbel", "penalty"],
)
def test_output_is_plain_and_the_network_never_misses_a_feature(drafter: Any, params: SamplingParams) -> None:
    target = StubTarget(6)
    network = Checked(target)
    prompts = [PROMPT, PROMPT * 9, [2, 2]]
    rows = [make_row(target, i, prompts[i], params, StopParams(max_new_tokens=40)) for i in range(3)]
    decode_rows(target, drafter(network=network), rows, 12)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.output_ids == plain_tokens(target, prompt, 40, params)
        assert row.counters.drafts > 0
    assert network.empty == 0
    assert network.checked > 10 or params != SamplingParams() or drafter is AutoDrafter
    assert network._rows == {}


def test_turns_of_a_chat_and_several_answers() -> None:
    target = StubTarget(6)
    network = Checked(target)
    engine = Engine(target, Sometimes(network=network), num_speculative_tokens=4)
    tokens = list(PROMPT)
    for _ in range(3):
        result = engine.generate(tokens, max_new_tokens=15)
        assert list(result.token_ids) == plain_tokens(target, tokens, 15)  # type: ignore[union-attr]
        tokens += [*result.token_ids, 1, 1]  # type: ignore[union-attr]
    found = engine.generate([tokens, PROMPT], n=2, max_new_tokens=12)
    assert list(found[1].token_ids) == plain_tokens(target, tokens, 12)  # type: ignore[index, union-attr]
    assert network.empty == 0
    assert network.checked > 8


# Which of the two, and how far.


def rounds(drafter: AutoDrafter, tokens: list[int], accepted: Any, count: int, **sampling: Any) -> list[int]:
    """`count` rounds on the same row, of which each takes the network's draft or the copy as far as `accepted` says of
    its length; the lengths drafted."""
    lengths = []
    for _ in range(count):
        draft = drafter.propose([context(tokens, **sampling)], [8])[0]
        length = len(draft.token_ids)
        drafter._asked -= 0.010 + 0.0005 * length
        kept = accepted(length)
        deciders = ("drafter",) * kept + ("target",)
        drafter.observe([0], [Verdict((1,) * (kept + 1), kept, min(kept + 1, length), deciders)])
        lengths.append(length)
    return lengths


class Fixed:
    """In a network's place: always the same tokens with the same confidence."""

    capture = (1,)

    def __init__(self, confidence: float) -> None:
        self.confidence = confidence
        self.stops: list[Any] = []

    def draft(self, contexts: Any, limits: Any, stops: Any) -> Any:
        self.stops += stops
        return [Drafted(Draft((7,) * limit), (self.confidence,) * limit) for limit in limits]

    def waiting(self, key: int) -> int:
        return 1

    def observe(self, keys: Any, verdicts: Any) -> None:
        pass

    def reset(self, keys: Any = None) -> None:
        pass


UNIQUE = list(range(20, 60))  # nothing to copy
COPYABLE = [5, 6, 7, 8, 9, 10, 11, 12] * 6


def test_a_network_that_is_right_is_followed_far_and_one_that_is_wrong_not_at_all_but_for_probes() -> None:
    good = AutoDrafter(network=Fixed(0.95))  # type: ignore[arg-type]
    assert rounds(good, UNIQUE, lambda length: length, 60)[-1] == 8
    bad_network = Fixed(0.95)
    bad = AutoDrafter(network=bad_network)  # type: ignore[arg-type]
    lengths = rounds(bad, UNIQUE, lambda length: 0, 200)
    assert sum(lengths[100:]) <= 2 * 4
    assert 1 <= len(bad_network.stops) < 60
    # the text changes: the probes notice
    assert rounds(bad, UNIQUE, lambda length: length, 400)[-1] == 8


def test_of_a_batch_a_few_rows_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: now))
    drafter = AutoDrafter(network=Fixed(0.95))  # type: ignore[arg-type]
    batch = [context(UNIQUE, key=key) for key in range(32)]
    drafted = []
    for _ in range(200):
        drafts = drafter.propose(batch, [8] * len(batch))
        lengths = [len(draft.token_ids) for draft in drafts]
        now += 0.010 + 0.0005 * (len(batch) + sum(lengths))
        drafter.observe([row.key for row in batch], [verdict(0, min(1, length)) for length in lengths])
        drafted.append(sum(length > 0 for length in lengths))
    assert max(drafted) == 4
    assert 4 <= drafted.count(4) <= 6


def test_rows_of_drawn_tokens_are_probed_by_their_own_rounds_whatever_the_batch() -> None:
    alone = rounds(AutoDrafter(network=Fixed(0.95)), UNIQUE, lambda length: 0, 160, temperature=1.0)  # type: ignore[arg-type]
    assert 0 < sum(length > 0 for length in alone[60:]) <= 4
    drafter = AutoDrafter(network=Fixed(0.95))  # type: ignore[arg-type]
    batch = [context(UNIQUE, key=key, temperature=1.0) for key in range(8)]
    for length in alone:
        drafts = drafter.propose(batch, [8] * len(batch))
        assert [len(draft.token_ids) for draft in drafts] == [length] * len(batch)
        drafter.observe([row.key for row in batch], [verdict(0, min(1, length))] * len(batch))


def test_a_long_match_is_copied_and_the_network_is_not_asked() -> None:
    network = Fixed(0.9)
    drafter = AutoDrafter(network=network)  # type: ignore[arg-type]
    lengths = rounds(drafter, COPYABLE, lambda length: length, 60)
    assert lengths[-1] == 8
    assert len(network.stops) < 20


def test_low_confidence_is_cut_before_it_is_verified() -> None:
    drafter = AutoDrafter(network=Fixed(0.05))  # type: ignore[arg-type]
    lengths = rounds(drafter, UNIQUE, lambda length: 0, 40)
    assert max(lengths) <= 3


def test_calibration_learns_and_turns_a_chance_into_a_product_of_confidences() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.record([0.5] * 3, 3, 3)
        calibration.record([0.9], 0, 1)
    assert calibration.chances([0.5, 0.9]) == pytest.approx([1.0, 0.0], abs=0.02)
    honest = Calibration()
    for seed in range(3000):
        confidence = (seed % 12 + 0.5) / 12
        honest.record([confidence], int((seed * 0.618) % 1 < confidence), 1)
    assert honest.product_of(0.3) == pytest.approx(0.3, abs=0.08)
    assert honest.product_of(1.0) == 1.0


# Rejection sampling.


def test_sampled_rows_decide_alike_whatever_the_clock_and_the_company() -> None:
    target = StubTarget(6)
    sampled = SamplingParams(temperature=1.0, seed=3)
    outputs = []
    for company, delay in ((0, 0.0), (3, 5.0)):
        drafter = AutoDrafter(network=make_drafter(target))
        inner = drafter.observe

        def observe(keys: Any, verdicts: Any, inner: Any = inner, drafter: Any = drafter, delay: float = delay) -> None:
            drafter._asked -= delay
            inner(keys, verdicts)

        drafter.observe = observe  # type: ignore[method-assign]
        rows = [make_row(target, 0, PROMPT, sampled)] + [make_row(target, 1 + i, PROMPT * 3) for i in range(company)]
        decode_rows(target, drafter, rows, 6)
        outputs.append(rows[0].output_ids)
        assert rows[0].counters.drafts > 3
    assert outputs[0] == outputs[1]


TABLE = torch.tensor([[1.0, 0.2, -0.5, 0.4], [-1.0, 0.8, 0.3, 0.0], [0.5, 0.5, 0.1, -2.0], [0.0, -0.3, 1.2, 0.6]])


@pytest.mark.parametrize(("kind", "confidence"), [("eagle3", 0.0), ("eagle3", 0.5), ("auto", 0.0)])
def test_pairs_of_sampled_tokens_follow_the_target(kind: str, confidence: float) -> None:
    """A draft that ends by what is known before the draw leaves every distribution as it is."""
    target = StubTarget(4, order=1, logits_of=lambda history: TABLE[history[-1]], max_positions=300)
    network = make_drafter(target, confidence)
    drafter = network if kind == "eagle3" else AutoDrafter(network=network)
    requests = [SamplingParams(temperature=1.0, top_p=0.95, seed=seed) for seed in range(40)]
    rows, verdicts = speculate(
        LosslessVerifier(target), target, drafter, [(0, 1)] * 40, requests, count=120, num_speculative_tokens=3
    )
    drafted = Counter(verdict.examined for row in verdicts for verdict in row)
    assert len(drafted) > 2
    counts = np.zeros((4, 4))
    for row in rows:
        np.add.at(counts, ([1, *row[:-1]], row), 1)
    expected = torch.stack([probabilities(logits, requests[0]) for logits in TABLE]).double().numpy()
    assert counts[expected == 0].sum() == 0
    variation = np.abs(counts - counts.sum(1, keepdims=True) * expected).sum() / 2 / counts.sum()
    assert variation < 0.035
