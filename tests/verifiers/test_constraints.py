"""Constraints with memory, and what cannot be verified."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from slimtier.errors import InputError, NonFiniteError
from slimtier.noise import Noise
from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubTarget, plain_tokens
from tests.verifying import PROMPT, sampled, verify_one

LETTERS, DIGITS, STOP = range(0, 10), range(10, 20), 20


def spelling(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """After a digit only a letter; ends at the stop token, after which nothing is allowed."""
    assert STOP not in token_ids[:-1], "asked beyond the end"
    if token_ids[-1] == STOP:
        return torch.full_like(logits, -torch.inf)
    logits[STOP + 1 :] = -torch.inf
    if token_ids[-1] in DIGITS:
        logits[LETTERS.stop :] = -torch.inf
    return logits


@pytest.mark.parametrize("coupling", ["greedy", "gumbel", "rejection"])
@pytest.mark.parametrize("letter", [1, 2, 3])
def test_a_constraint_with_memory_survives_wrong_drafts_and_a_draft_past_its_end(letter: int, coupling: str) -> None:
    """The row ends after its second, third ... letter, in the middle of the block, and the draft goes on."""
    target = StubTarget(vocab_size=32, order=1)
    params = {
        "greedy": SamplingParams(processors=(spelling,)),
        "gumbel": sampled(processors=(spelling,), coupling="gumbel"),
        "rejection": sampled(processors=(spelling,)),
    }[coupling]
    own = plain_tokens(target, [1], 12, replace(params, logit_bias={STOP: -100.0}))
    end = [slot for slot, token in enumerate(own) if token in LETTERS][letter] + 1
    own = own[:end]
    params = replace(params, processors=(stop_at(end + 1), spelling))
    draft = Draft((*own, STOP, 1, 2))
    verdict = verify_one(target, [1], draft, params)
    emitted = [1, *verdict.token_ids]
    assert all(b in LETTERS for a, b in pairwise(emitted) if a in DIGITS)
    if coupling != "rejection":
        assert list(verdict.token_ids) == [*own, STOP]
        assert (verdict.accepted, verdict.examined) == (end, end), "the kept stop token stands as the bonus"
        wrong_draft = Draft((*own[:1], (own[1] + 1) % 20, STOP, 1))
        assert list(verify_one(target, [1], wrong_draft, params).token_ids) == own[:2]


def stop_at(length: int) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor]:
    def processor(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        logits[STOP] = 1e4 if len(token_ids) == length else -1e4
        return logits

    return processor


def test_a_row_that_goes_on_past_the_end_of_its_constraint_is_told() -> None:
    target = StubTarget(vocab_size=32)
    with pytest.raises(NonFiniteError, match="banned"):
        verify_one(target, [1, STOP], Draft((1,)), SamplingParams(processors=(spelling,)))


@pytest.mark.parametrize(
    ("draft", "cause"),
    [
        (Draft((96,)), "token 96"),
        (Draft((-1,)), "token -1"),
        (Draft((1, 2), torch.full((1, 96), 1 / 96)), "shape"),
        (Draft((1,), torch.full((1, 40), 1 / 40)), "shape"),
        (Draft((1,), torch.eye(96)[2:3]), "above 0"),
        (Draft((1,), torch.full((1, 96), float("nan"))), "above 0"),
    ],
)
def test_an_impossible_draft_is_refused_before_the_target_runs(draft: Draft, cause: str) -> None:
    target = StubTarget()
    cache = target.begin(1, 64)
    with pytest.raises(InputError, match=f"drafter.*{cause}"):
        LosslessVerifier(target).verify([VerifyRow(PROMPT, 4, sampled(), Noise(0))], [draft], cache)
    assert target.calls == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, "all"])
@pytest.mark.parametrize("params", [SamplingParams(), sampled(), sampled(coupling="gumbel")])
def test_logits_that_are_not_finite_are_named(bad: float | str, params: SamplingParams) -> None:
    def logits_of(history: tuple[int, ...]) -> torch.Tensor:
        logits = torch.zeros(96)
        if bad == "all":
            return logits - torch.inf
        logits[3] = bad
        return logits

    with pytest.raises(NonFiniteError):
        verify_one(StubTarget(logits_of=logits_of), PROMPT, Draft((1, 2)), params)
