"""The lossy baseline."""

from __future__ import annotations

import pytest
import torch

from slimtier.errors import ConfigError, InputError
from slimtier.noise import Noise
from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.lenient import LenientVerifier
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubTarget, plain_tokens, speculate, wrong

TARGET_PROBS = torch.tensor([0.6, 0.3, 0.1])


def stub() -> StubTarget:
    return StubTarget(3, logits_of=lambda history: TARGET_PROBS.log())


def verdict_of(lenience: float, drafted: int, params: SamplingParams, seed: int = 0):
    target = stub()
    row = VerifyRow((0,), 1, params, Noise(seed))
    return LenientVerifier(target, lenience).verify([row], [Draft((drafted,))], target.begin(1, 8))[0]


@pytest.mark.parametrize(
    ("lenience", "drafted", "accepted"), [(0.6, 1, 1), (0.4, 1, 0), (0.9, 2, 1), (0.8, 2, 0), (0.1, 0, 1)]
)
def test_greedy_keeps_what_is_within_the_lenience_of_the_argmax(lenience: float, drafted: int, accepted: int) -> None:
    verdict = verdict_of(lenience, drafted, SamplingParams())
    assert verdict.accepted == accepted
    assert verdict.token_ids == ((drafted, 0) if accepted else (0,))


def test_sampled_acceptance_is_widened_by_the_formula() -> None:
    params = SamplingParams(temperature=1.0)
    kept = sum(verdict_of(0.5, 1, params, seed).accepted for seed in range(1000))
    assert kept / 1000 == pytest.approx(0.3 / 0.5, abs=0.06)
    assert all(verdict_of(0.7, 1, params, seed).accepted for seed in range(50))


def test_it_says_that_it_is_lossy_and_is() -> None:
    target = StubTarget(scale=0.5)
    verifier = LenientVerifier(target, 0.9)
    assert (verifier.name, verifier.lossless, LosslessVerifier.lossless) == ("lenient", False, True)
    tokens, verdicts = speculate(
        verifier, target, wrong(target), [(1, 2)], [SamplingParams()], count=12, num_speculative_tokens=3
    )
    assert tokens[0] != plain_tokens(target, (1, 2), 12)
    assert any(verdict.accepted for verdict in verdicts[0])


@pytest.mark.parametrize("lenience", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_lenience_without_meaning_is_refused(lenience: float) -> None:
    with pytest.raises(ConfigError, match="lenience"):
        LenientVerifier(stub(), lenience)


def test_gumbel_coupling_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"gumbel.*lenient"):
        verdict_of(0.5, 1, SamplingParams(temperature=1.0, coupling="gumbel"))
    assert verdict_of(0.5, 0, SamplingParams(coupling="gumbel")).accepted == 1
