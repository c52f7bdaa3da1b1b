"""Lossless decoding that looks at what a gate would have done."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from slimtier.models.slim import SlimTarget
from slimtier.noise import Noise
from slimtier.sampling import process
from slimtier.types import Decider, Draft, SamplingParams, StopParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.gate import Gate
from slimtier.verifiers.lossless import LosslessVerifier
from slimtier.verifiers.tiered import ObservingVerifier
from tests.decoding import decode_rows, make_row
from tests.drafters.remembering import Remembering
from tests.stubs import StubTarget, plain_tokens
from tests.verifiers.test_lossless import GREEDY
from tests.verifiers.tiered_rule import ROUTE, guesses, noisy
from tests.verifying import sampled

PROMPTS = [[3, 1, 4, 1, 5], [7], list(range(12)) * 6]


def observing(target: StubTarget, gate: Gate | None = None) -> ObservingVerifier:
    return ObservingVerifier(target, SlimTarget(target, ROUTE), gate or Gate())


@pytest.mark.parametrize(
    "params", [*GREEDY.values(), sampled(), sampled(coupling="gumbel")], ids=[*GREEDY, "T1", "gumbel"]
)
def test_observing_changes_nothing_and_logs_what_the_gate_would_have_done(params: SamplingParams) -> None:
    target = noisy(vocab_size=96, order=1)
    gate = Gate(0.6, 0.3)
    found, plain = (
        [make_row(target, i, prompt, params, StopParams(30 - 9 * i), logprobs=1) for i, prompt in enumerate(PROMPTS)]
        for _ in range(2)
    )
    logged = guesses(target)
    decode_rows(target, logged, found, 4, observing(target, gate))
    decode_rows(target, guesses(target), plain, 4, LosslessVerifier(target))
    for row, own in zip(found, plain, strict=True):
        assert (row.token_ids, row.deciders, row.logprobs) == (own.token_ids, own.deciders, own.logprobs)
        counted = row.counters.tiers
        assert counted.target_calls == own.counters.tiers.target_calls
        assert counted.slim_calls == counted.target_calls
        assert sum(counted.gated.values()) == row.counters.examined == own.counters.examined
        expected: Counter[Decider] = Counter()
        tokens = list(row.token_ids[: row.num_prompt_tokens])
        for draft in [draft for key, draft in logged.proposed if key == row.key]:
            history = list(tokens)
            for token in draft.token_ids:
                slim = process(target.logits_of(history, ROUTE), history, row.num_prompt_tokens, params)
                expected[gate.decide(slim, token)] += 1
                history.append(token)
                if history != row.token_ids[: len(history)]:
                    break
            tokens = row.token_ids[: len(history) + (history == row.token_ids[: len(history)])]
        assert counted.gated == expected
    assert len(found[0].counters.tiers.gated) == 3


def test_features_of_an_observed_run_are_the_targets() -> None:
    target = noisy()
    drafter = Remembering(target, guesses(target))
    row = make_row(target, 0, PROMPTS[0])
    decode_rows(target, drafter, [row], 4, observing(target))
    assert row.output_ids == plain_tokens(target, PROMPTS[0], 24)
    assert {route for route, _ in target.log} == {None, ROUTE}
    assert drafter.checked > 4
    assert drafter.wrong == 0


def test_the_gate_sees_each_slots_own_history() -> None:
    """The second 5 in a row is penalised for the first, which is drafted too."""
    logits = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.9])
    target = StubTarget(7, logits_of=lambda history: logits, route_noise=0.0)
    cache = target.begin(1, 64)
    row = VerifyRow([1], 1, SamplingParams(frequency_penalty=2.0), Noise(0))
    verdict = observing(target).verify([row], [Draft((5, 5))], cache)[0]
    assert (verdict.token_ids, verdict.gated) == ((5, 6), ("drafter", "target"))
