"""Log probabilities of the output tokens."""

from __future__ import annotations

import pytest

from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubTarget, mixed, speculate
from tests.verifying import PROMPT, sampled, verify_one


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), sampled(temperature=0.7), SamplingParams(repetition_penalty=1.5, logit_bias={3: 5.0})],
    ids=["greedy", "sampled", "penalties"],
)
def test_logprobs_are_the_models_own_at_every_slot(params: SamplingParams) -> None:
    target = StubTarget(scale=2.0)
    tokens, verdicts = speculate(
        LosslessVerifier(target),
        target,
        mixed(target),
        [PROMPT],
        [params],
        count=16,
        num_speculative_tokens=4,
        logprobs=5,
    )
    given = [each for verdict in verdicts[0] for each in verdict.logprobs]
    emitted = [token for verdict in verdicts[0] for token in verdict.token_ids]
    assert len(given) == len(emitted) == len(tokens[0])
    row = list(PROMPT)
    for token, logprobs in zip(emitted, given, strict=True):
        raw = target.logits_of(row).log_softmax(0)
        top = raw.topk(5).indices.tolist()
        assert next(iter(logprobs)) == token, "the chosen token comes first"
        assert set(logprobs) == {token, *top}
        assert [key for key in logprobs if key != token] == [key for key in top if key != token]
        assert logprobs == pytest.approx({key: float(raw[key]) for key in logprobs}, abs=1e-5)
        row.append(token)


def test_logprobs_on_demand_only() -> None:
    target = StubTarget()
    assert verify_one(target, PROMPT, Draft((1, 2)), sampled()).logprobs == ()
    chosen_only = verify_one(target, PROMPT, Draft((1, 2)), SamplingParams(), logprobs=0)
    assert [len(each) for each in chosen_only.logprobs] == [1] * len(chosen_only.token_ids)
    everything = verify_one(target, PROMPT, Draft(()), SamplingParams(), logprobs=500)
    assert len(everything.logprobs[0]) == 96
