"""Lossless tiers above temperature 0: what comes out follows the target's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from slimtier.drafters.base import DraftContext, Drafter
from slimtier.drafters.none import NoDrafter
from slimtier.drafters.tiered import TieredDrafter
from slimtier.models.slim import SlimTarget
from slimtier.noise import Noise
from slimtier.sampling import probabilities, process
from slimtier.types import Draft, Route
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import ScriptedDrafter, StubTarget, drawn, speculate
from tests.tiering import DEEP, SKIP, a_few, tiers
from tests.verifiers.test_pairs import OTHER, TABLE
from tests.verifying import sampled

SIZE = len(TABLE)
BANNED = SIZE  # a token that the target never outputs


class Chain(StubTarget):
    """Which token follows depends on the one before alone, by logits [vocab, vocab] for each route."""

    def __init__(self, own: torch.Tensor, slim: dict[Route, torch.Tensor]) -> None:
        super().__init__(SIZE + 1, order=1, max_positions=1000)
        self.tables: dict[Route | None, torch.Tensor] = {None: with_banned(own, -60.0), **slim}

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        return self.tables[route][history[-1]].clone()


def with_banned(logits: torch.Tensor, chance: float = -2.0) -> torch.Tensor:
    """[4, 4] as [5, 5]: the banned token has this logit everywhere, and is followed by what follows the first."""
    padded = torch.full((SIZE + 1, SIZE + 1), chance)
    padded[:, :SIZE] = logits[[*range(SIZE), 0]]
    return padded


def flat(*logits: float) -> torch.Tensor:
    """The same after every token: so few draws tell two distributions apart."""
    return torch.tensor(logits).expand(SIZE, -1)


OWN = {"flat": flat(0.3, 1.2, -0.5, 0.0), "pairs": TABLE}
NEAR = {"flat": flat(0.9, 0.4, 0.3, -0.6), "pairs": OTHER}
FAULTS = 1e-6  # a p-value that a planted fault must stay under, and the right code above its 1000-fold


def slim_of(kind: str, often: str) -> torch.Tensor:
    """Logits [5, 5] whose tokens the target keeps so often."""
    return {
        "always": with_banned(OWN[kind], -60.0),
        "sometimes": with_banned(NEAR[kind]),
        "hardly": with_banned(-2.0 * OWN[kind]),
        "never": 60.0 * torch.eye(SIZE + 1)[BANNED].expand(SIZE + 1, -1),
    }[often]


def inner_of(name: str) -> Drafter:
    if name == "none":
        return NoDrafter()
    if name == "certain":
        return ScriptedDrafter(lambda context, limit: Draft((1, 2, 0, 3, 1, 2)[:limit]))
    chances = with_banned(-OTHER)
    return drawn(lambda history: probabilities(chances[history[-1]], sampled(temperature=0.8)))


def p_value(target: Chain, drafter: Drafter, requests: int, count: int, k: int) -> float:
    """Of how often token b follows token a, over requests of `count` tokens each, were the target their source."""
    params = [sampled(seed=seed) for seed in range(1000, 1000 + requests)]
    rows, _ = speculate(
        LosslessVerifier(target), target, drafter, [(0,)] * requests, params, count=count, num_speculative_tokens=k
    )
    counts = np.zeros((SIZE, SIZE))
    for row in rows:
        assert BANNED not in row
        np.add.at(counts, ([0, *row[:-1]], row), 1)
    own = target.tables[None]
    chances = torch.stack([probabilities(own[row], sampled())[:SIZE] for row in range(SIZE)]).double().numpy()
    if bool((own == own[0]).all()):
        counts, chances = counts.sum(0, keepdims=True), chances[:1]
    expected = counts.sum(1, keepdims=True) * chances / chances.sum(1, keepdims=True)
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(chances) * (SIZE - 1)))


@pytest.mark.parametrize("inner", ["none", "certain", "drawn"])
def test_the_reported_distributions_are_the_slim_verifiers(inner: str) -> None:
    """Bit for bit, at each token's own history, with the row's own settings."""
    target = Chain(TABLE, {DEEP: slim_of("pairs", "sometimes")})
    params = sampled(temperature=0.7, top_k=3, frequency_penalty=0.4)
    cache = target.begin(1, 64)
    target.forward([0, 2], cache, [2])
    noise = Noise.of(5, stream="verifier").fork("drafter")
    context = DraftContext(0, [0, 2, 3], 2, params, noise, cache)
    draft = tiers(target, inner_of(inner), (7,), 2).propose([context], [9])[0]
    assert 7 <= len(draft.token_ids) <= 9
    assert draft.probs is not None
    history = [0, 2, 3]
    for token, reported in zip(draft.token_ids, draft.probs, strict=True):
        logits = process(target.logits_of(history, DEEP), history, 2, params)
        assert torch.equal(reported, probabilities(logits, params))
        history.append(token)


INNER, OFTEN = ["none", "certain", "drawn"], ["always", "sometimes", "hardly", "never"]


@pytest.mark.parametrize(("inner", "often", "flush", "beyond"), a_few(8, INNER, OFTEN, [3, 1, 2], [2, 0]))
def test_sampled_tokens_follow_the_target(inner: str, often: str, flush: int, beyond: int) -> None:
    """Also where the last round of a run goes `beyond` the flush."""
    target = Chain(OWN["flat"], {DEEP: slim_of("flat", often)})
    assert p_value(target, tiers(target, inner_of(inner), (flush,), 2), 60, 12, flush + beyond) > 1000 * FAULTS


@pytest.mark.parametrize(("inner", "flushes"), a_few(3, INNER, [(3, 3), (2, 4)]))
def test_sampled_tokens_of_nested_tiers_follow_the_target(flushes: tuple[int, int], inner: str) -> None:
    """Short answers: tiers that share their random numbers do so from the start."""
    middle = with_banned(flat(0.0, 0.7, 0.4, 0.0))
    target = Chain(OWN["flat"], {SKIP: middle, DEEP: slim_of("flat", "sometimes")})
    drafter = tiers(target, inner_of(inner), flushes, 2, (SKIP, DEEP))
    assert p_value(target, drafter, 300, 4, flushes[0]) > 1000 * FAULTS


@pytest.mark.slow
@pytest.mark.parametrize("often", OFTEN[:3])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(("flushes", "beyond"), [((2,), 0), ((5,), 2), ((4, 4), 2), ((6, 2), 0), ((1,), 2)])
def test_pairs_of_sampled_tokens_follow_the_target(
    inner: str, often: str, flushes: tuple[int, ...], beyond: int
) -> None:
    middle = with_banned((TABLE + OTHER) / 2)
    target = Chain(TABLE, {SKIP: middle, DEEP: slim_of("pairs", often)})
    drafter = tiers(target, inner_of(inner), flushes, 2, (SKIP, DEEP)[2 - len(flushes) :])
    assert p_value(target, drafter, 400, 20, flushes[0] + beyond) > 1000 * FAULTS


class Picky(TieredDrafter):
    """A planted fault: a flush that is decided after the draw. A run that ends with token 1 is cut before it."""

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        drafts = super().propose(contexts, limits)
        return [
            replace(draft, token_ids=draft.token_ids[:-1], probs=None if draft.probs is None else draft.probs[:-1])
            if draft.token_ids[-1:] == (1,)
            else draft
            for draft in drafts
        ]


@pytest.mark.parametrize("often", ["always", "sometimes"])
def test_a_flush_that_looks_at_the_token_drawn_is_noticed(often: str) -> None:
    target = Chain(OWN["flat"], {DEEP: slim_of("flat", often)})
    drafter = Picky(NoDrafter(), LosslessVerifier(SlimTarget(target, DEEP)), 1, 2)
    assert p_value(target, drafter, 60, 12, 1) < FAULTS


def test_tiers_that_share_their_random_numbers_are_noticed() -> None:
    """A planted fault: both slim verifiers draw from one stream, each from its start."""
    middle = with_banned(flat(0.0, 0.7, 0.4, 0.0))
    target = Chain(OWN["flat"], {SKIP: middle, DEEP: slim_of("flat", "sometimes")})
    drafter = tiers(target, NoDrafter(), (3, 3), 2, (SKIP, DEEP))
    drafter.depth = 1
    assert p_value(target, drafter, 300, 4, 3) < FAULTS
