"""What the verifiers' tests share."""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.noise import Noise
from slimtier.sampling import probabilities
from slimtier.types import Draft, SamplingParams, Verdict
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import ScriptedDrafter, StubTarget, drawn

PROMPT = (10, 3, 77, 5)


def sampled(**settings: object) -> SamplingParams:
    """Temperature 1 and a seed, unless told otherwise."""
    return SamplingParams(**{"temperature": 1.0, "seed": 5, **settings})  # type: ignore[arg-type]


def verify_one(
    target: StubTarget, tokens: Sequence[int], draft: Draft, params: SamplingParams, logprobs: int | None = None
) -> Verdict:
    """One round of one row whose tokens count as prompt; checks what it leaves in the cache."""
    cache = target.begin(1, 64)
    target.forward(tokens[:-1], cache, [len(tokens) - 1])
    row = VerifyRow(tokens, len(tokens), params, Noise.of(params.seed, stream="verifier"), logprobs)
    verdict = LosslessVerifier(target).verify([row], [draft], cache)[0]
    assert cache.rows[0] == [*tokens, *verdict.token_ids][:-1]
    return verdict


def drawn_near(target: StubTarget) -> ScriptedDrafter:
    """Draws from the target's own distribution at temperature 1."""
    return drawn(lambda history: probabilities(target.logits_of(history), sampled()))
