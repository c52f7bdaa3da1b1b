"""Lossy tiers above temperature 0: the distribution of a block, token by token with who decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from scipy import stats

from slimtier.drafters.base import DraftContext
from slimtier.noise import Noise
from slimtier.sampling import probabilities, process
from slimtier.types import Decider, Draft, Route, SamplingParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.gate import Gate
from tests.decoding import decode_rows, make_row
from tests.stubs import ScriptedDrafter, StubTarget, drawn
from tests.tiering import a_few
from tests.verifiers.tiered_rule import ROUTE, noisy, tiered
from tests.verifying import sampled

LOGITS = {
    None: torch.tensor([0.1, 1.1, -0.4, 0.6, -1.2]),
    ROUTE: torch.tensor([0.9, 0.4, 0.2, -0.5, -0.8]),  # ratios 1, .61, .50, .25, .18
}
CHANCES = torch.tensor([0.2, 0.1, 0.25, 0.25, 0.2])  # of the drafter
CERTAIN = (3, 1)
SAMPLED = {
    "T1": SamplingParams(temperature=1.0),
    "filters": SamplingParams(temperature=0.7, top_k=4, logit_bias={4: 0.9, 0: -0.3}),
}
SETTINGS = {
    "default": Gate(),
    "wide B": Gate(0.95, 0.2),
    "literal": Gate(0.55, 0.4, literal=True),
    "margin": Gate(margin=0.6),
    "A and C": Gate(0.4, 0.4),
    "kept whole": Gate(0.0, 0.0),
    "always asked": Gate(2.0, 1.5),
}
Block = tuple[tuple[int, Decider], ...]


class Flat(StubTarget):
    """The same logits whatever the history."""

    def __init__(self) -> None:
        super().__init__(5)

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        return LOGITS[route].clone()


def speculative(target: list[float], draft: list[float]) -> list[tuple[int, bool, float]]:
    """What becomes of a drafted token: (output token, whether it is kept, chance)."""
    kept = [min(d, a) for a, d in zip(target, draft, strict=True)]
    rest = [max(a - d, 0.0) for a, d in zip(target, draft, strict=True)]
    lost, total = 1.0 - sum(kept), sum(rest)
    replaced = [(t, False, lost * each / total) for t, each in enumerate(rest)] if total else []
    return [*((t, True, each) for t, each in enumerate(kept)), *replaced]


def exact_blocks(gate: Gate, params: SamplingParams, length: int, certain: bool) -> dict[Block, float]:
    """The chance of every block, summed over what is drafted, drawn and accepted."""
    target, slim = (process(LOGITS[route], (), 0, params) for route in (None, ROUTE))
    p, q = (probabilities(logits, params).tolist() for logits in (target, slim))
    ratios = [math.exp(float(each - slim.max())) for each in slim]
    unsure = float(slim.topk(2).values.diff().abs()) < gate.margin
    escalated = [unsure or ratio < gate.escalate for ratio in ratios]
    found: dict[Block, float] = {}

    def go(slot: int, asked: bool, so_far: Block, chance: float) -> None:
        if chance == 0.0:
            return
        d = [float(t == CERTAIN[slot]) for t in range(5)] if certain and slot < length else CHANCES.tolist()

        def put(token: int, who: Decider, goes_on: bool, asked: bool, part: float) -> None:
            block = (*so_far, (token, who))
            if goes_on:
                go(slot + 1, asked, block, chance * part)
            else:
                found[block] = found.get(block, 0.0) + chance * part

        if slot == length:
            ask = asked or unsure or gate.escalate > 1.0
            for token in range(5):
                put(token, "target" if ask else "slim", False, ask, (p if ask else q)[token])
            return
        if asked:
            for token, kept, part in speculative(p, d):
                put(token, "target", kept, True, part)
            return
        region = sum(each for each, asks in zip(d, escalated, strict=True) if asks)
        for v, each in enumerate(d):
            if escalated[v]:
                continue
            if ratios[v] >= gate.accept:
                put(v, "drafter", True, False, each)
            else:
                for token in range(5):
                    put(token, "slim", token == v, False, each * q[token])
        if region and gate.literal:
            for v, each in enumerate(d):
                for token in range(5):
                    put(token, "target", token == v, True, each * escalated[v] * p[token])
        elif region:
            given = [each * asks / region for each, asks in zip(d, escalated, strict=True)]
            for token, kept, part in speculative(p, given):
                put(token, "target", kept, True, region * part)

    go(0, False, (), 1.0)
    assert sum(found.values()) == pytest.approx(1.0)
    return found


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("params", SAMPLED)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_output_of_a_slot_is_the_mixture(name: str, params: str, certain: bool) -> None:
    """The chances above add up to draft · 1[A] + P(B) · slim + P(C) · target."""
    gate, setting = SETTINGS[name], SAMPLED[params]
    blocks = exact_blocks(gate, setting, 1, certain)
    target, slim = (process(LOGITS[route], (), 0, setting) for route in (None, ROUTE))
    p, q = probabilities(target, setting), probabilities(slim, setting)
    d = torch.eye(5)[CERTAIN[0]] if certain else CHANCES
    who = [gate.decide(slim, v) for v in range(5)]
    of = {one: torch.tensor([float(decider == one) for decider in who]) for one in ("drafter", "slim", "target")}
    mixture = d * of["drafter"] + (d * of["slim"]).sum() * q + (d * of["target"]).sum() * p
    output = torch.zeros(5)
    for block, chance in blocks.items():
        output[block[0][0]] += chance
    torch.testing.assert_close(output, mixture, rtol=0, atol=1e-6)


def drawn_blocks(gate: Gate, params: SamplingParams, length: int, certain: bool, draws: int) -> Counter[Block]:
    target = Flat()
    noises = [Noise.of(seed, stream="verifier") for seed in range(draws)]
    contexts = [DraftContext(i, (0, 1), 2, params, noise.fork("drafter")) for i, noise in enumerate(noises)]
    drafter = drawn(lambda history: CHANCES)
    if certain:
        drafter = ScriptedDrafter(lambda context, limit: Draft(CERTAIN[:limit]))
    drafts = drafter.propose(contexts, [length] * draws)
    cache = target.begin(draws, 64)
    target.forward([0] * draws, cache, [1] * draws)
    rows = [VerifyRow((0, 1), 2, params, noise) for noise in noises]
    verdicts = tiered(target, gate).verify(rows, drafts, cache)
    return Counter(tuple(zip(one.token_ids, one.deciders, strict=True)) for one in verdicts)


def p_value(counts: Counter[Block], exact: dict[Block, float]) -> float:
    """Chi-square; blocks that are expected fewer than 5 times are one. 0 where one came that cannot be."""
    draws = sum(counts.values())
    if not set(counts) <= {block for block, chance in exact.items() if chance > 0.0}:
        return 0.0
    common = {block: draws * chance for block, chance in exact.items() if draws * chance >= 5}
    seen, expected = [counts[block] for block in common], list(common.values())
    if draws - sum(expected) > 1e-6 * draws:
        seen.append(draws - sum(seen))
        expected.append(draws - sum(expected))
    return float(stats.chi2.sf(sum((a - b) ** 2 / b for a, b in zip(seen, expected, strict=True)), len(seen) - 1))


@pytest.mark.parametrize(("name", "params", "certain"), a_few(5, SETTINGS, SAMPLED, [False, True]))
def test_blocks_follow_the_mixture(name: str, params: str, certain: bool) -> None:
    gate, setting = SETTINGS[name], SAMPLED[params]
    counts = drawn_blocks(gate, setting, 2, certain, 1000)
    assert p_value(counts, exact_blocks(gate, setting, 2, certain)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_many_longer_blocks_follow_the_mixture(name: str) -> None:
    gate, setting = SETTINGS[name], SAMPLED["T1"]
    assert p_value(drawn_blocks(gate, setting, 3, False, 20_000), exact_blocks(gate, setting, 3, False)) > 1e-3


def test_testing_an_escalated_token_as_any_draft_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: it is a draw of the drafter, but given region C."""
    monkeypatch.setattr(Gate, "region", lambda gate, logits: torch.ones(5, dtype=torch.bool))
    gate = Gate(0.95, 0.55)
    counts = drawn_blocks(gate, SAMPLED["T1"], 1, False, 1200)
    assert p_value(counts, exact_blocks(gate, SAMPLED["T1"], 1, False)) < 1e-6


def test_a_seeded_row_gets_the_same_tokens_alone_and_in_any_company() -> None:
    target = noisy()

    def run(seeds: list[int]) -> list[list[int]]:
        rows = [make_row(target, key, [1, key], sampled(seed=seed)) for key, seed in enumerate(seeds)]
        drafter = drawn(lambda history: probabilities(target.logits_of(history, Route.skipping(4, [1])), sampled()))
        decode_rows(target, drafter, rows, 3, tiered(target, Gate(0.6, 0.3)))
        return [row.output_ids for row in rows]

    together = run([7, 8, 7, 9])
    assert run([7]) == together[:1]
    assert run([7, 3, 7])[2] == together[2]
    assert len({tuple(row) for row in together}) == 4
