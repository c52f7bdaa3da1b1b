"""The distribution of what comes out: which token follows which, at every kind of slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from slimtier.drafters.base import DraftContext
from slimtier.sampling import probabilities
from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import ScriptedDrafter, StubTarget, drawn, speculate
from tests.verifying import sampled

SIZE = 4
TABLE = torch.tensor([[1.0, 0.2, -0.5, 0.4], [-1.0, 0.8, 0.3, 0.0], [0.5, 0.5, 0.1, -2.0], [0.0, -0.3, 1.2, 0.6]])
OTHER = torch.tensor([[0.2, 0.9, -0.1, 0.0], [0.3, 0.0, 0.6, -0.4], [-1.0, 1.0, 0.4, 0.2], [0.9, 0.1, 0.0, 0.7]])


def pair_counts(params: SamplingParams, drafter: ScriptedDrafter, draws: int) -> np.ndarray:
    """How often token b follows token a in the output of 50 requests to a target that remembers one token."""
    target = StubTarget(SIZE, order=1, logits_of=lambda history: TABLE[history[-1]], max_positions=1000)
    requests = [replace(params, seed=seed) for seed in range(50)]
    rows, _ = speculate(
        LosslessVerifier(target),
        target,
        drafter,
        [(0,)] * len(requests),
        requests,
        count=draws // len(requests),
        num_speculative_tokens=2,
    )
    counts = np.zeros((SIZE, SIZE))
    for row in rows:
        np.add.at(counts, ([0, *row[:-1]], row), 1)
    return counts


def pair_variation(counts: np.ndarray, params: SamplingParams) -> float:
    """Total variation between the pairs and what the target makes of each first token."""
    expected = torch.stack([probabilities(logits, params) for logits in TABLE]).double().numpy()
    return float(np.abs(counts - counts.sum(1, keepdims=True) * expected).sum() / 2 / counts.sum())


PAIR_SETTINGS = {
    "T1.5 top_p": sampled(temperature=1.5, top_p=0.9),
    "T0.5": sampled(temperature=0.5),
    "T2 min_p": sampled(temperature=2.0, min_p=0.3),
    "T1 top_k": sampled(top_k=3),
    "gumbel": sampled(coupling="gumbel", top_p=0.9),
}


@pytest.mark.parametrize(
    "setting",
    [pytest.param(name, marks=() if "min_p" in name else pytest.mark.slow) for name in PAIR_SETTINGS],
)
def test_pairs_of_sampled_tokens_follow_the_target(setting: str) -> None:
    params, draft_params = PAIR_SETTINGS[setting], sampled(temperature=0.8)
    counts = pair_counts(params, drawn(lambda history: probabilities(OTHER[history[-1]], draft_params)), 20_000)
    assert pair_variation(counts, params) < 0.02
    for seen, logits in zip(counts, TABLE, strict=True):
        expected = probabilities(logits, params).double().numpy()
        possible = expected > 0
        assert seen[~possible].sum() == 0, "a token that the target cannot produce"
        share = expected[possible] / expected.sum()
        assert stats.chisquare(seen[possible], seen.sum() * share).pvalue > 1e-3


def test_a_drafter_that_reports_the_raw_softmax_is_noticed_in_pairs() -> None:
    """A planted fault: drawn with top_k=2, reported without."""
    params = sampled()

    def script(context: DraftContext, limit: int) -> Draft:
        honest = drawn(lambda history: probabilities(OTHER[history[-1]], sampled(top_k=2))).script(context, limit)
        histories = [(*context.token_ids, *honest.token_ids[:slot]) for slot in range(len(honest.token_ids))]
        if not histories:
            return honest
        return Draft(honest.token_ids, torch.stack([OTHER[history[-1]].softmax(0) for history in histories]))

    assert pair_variation(pair_counts(params, ScriptedDrafter(script), 3000), params) > 0.03
