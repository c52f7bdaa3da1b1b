"""The lossless verifier against decoding one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import ScriptedDrafter, StubTarget, empty, mixed, oracle, plain_tokens, speculate, wrong
from tests.verifying import PROMPT, sampled, verify_one

DRAFTERS: dict[str, Callable[[StubTarget], ScriptedDrafter]] = {
    "oracle": oracle,
    "wrong": wrong,
    "mixed": mixed,
    "empty": lambda target: empty(),
}
MOST_COMMON = 7  # banned or boosted below


def alternating(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Only even tokens after odd ones, and the reverse: a constraint that is a function of the history."""
    logits[token_ids[-1] % 2 :: 2] = -torch.inf
    return logits


def no_third_of_the_output(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    if len(token_ids) > len(PROMPT) + 2:
        logits[token_ids[len(PROMPT) + 2]] = -torch.inf
    return logits


GREEDY = {
    "plain": SamplingParams(),
    "repetition": SamplingParams(repetition_penalty=1.5),
    "presence": SamplingParams(presence_penalty=1.0),
    "frequency": SamplingParams(frequency_penalty=1.0),
    "no_repeat_ngram": SamplingParams(no_repeat_ngram=2),
    "ban": SamplingParams(logit_bias={MOST_COMMON: -100.0}),
    "boost": SamplingParams(logit_bias={MOST_COMMON: 8.0}, frequency_penalty=0.7),
    "processors": SamplingParams(processors=(alternating, no_third_of_the_output)),
    "tiny temperature": SamplingParams(temperature=1e-5, top_k=2, top_p=0.5, min_p=0.3),
}


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 4, 6])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("setting", GREEDY)
def test_greedy_is_plain_decoding(setting: str, drafter: str, num_speculative_tokens: int) -> None:
    """Every option acts at every slot, with that slot's own history, whatever the draft length."""
    # Two tokens of memory and few tokens: loops are common, and the penalties bite.
    target = StubTarget(order=1, scale=2.0)
    params = GREEDY[setting]
    plain = plain_tokens(target, PROMPT, 30, params)
    tokens, verdicts = speculate(
        LosslessVerifier(target),
        target,
        DRAFTERS[drafter](target),
        [PROMPT],
        [params],
        count=30,
        num_speculative_tokens=num_speculative_tokens,
    )
    assert tokens[0] == plain
    accepted, examined = sum(v.accepted for v in verdicts[0]), sum(v.examined for v in verdicts[0])
    assert {"oracle": accepted == examined > 0, "wrong": accepted == 0, "empty": examined == 0}.get(drafter, True)


@pytest.mark.parametrize("setting", ["repetition", "presence", "frequency", "no_repeat_ngram", "ban", "processors"])
def test_each_option_makes_a_difference_here(setting: str) -> None:
    target = StubTarget(order=1, scale=2.0, logits_of=favourite(MOST_COMMON) if setting == "ban" else None)
    assert plain_tokens(target, PROMPT, 30, GREEDY[setting]) != plain_tokens(target, PROMPT, 30)


def favourite(token: int) -> Callable[[tuple[int, ...]], torch.Tensor]:
    base = StubTarget(order=1, scale=2.0)

    def logits_of(history: tuple[int, ...]) -> torch.Tensor:
        logits = base.logits_of(history)
        logits[token] += 6.0
        return logits

    return logits_of


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_a_banned_token_comes_out_of_no_slot(accepted: int) -> None:
    """Accepted, recovered and bonus slots alike; the model wants the banned token everywhere."""
    target = StubTarget(logits_of=favourite(MOST_COMMON))
    params = SamplingParams(logit_bias={MOST_COMMON: -100.0})
    own = plain_tokens(target, PROMPT, 4, params)
    draft = Draft((*own[:accepted], MOST_COMMON) if accepted < 3 else tuple(own[:3]))
    verdict = verify_one(target, PROMPT, draft, params)
    assert verdict.accepted == accepted
    assert MOST_COMMON not in verdict.token_ids


def test_min_p_acts_on_every_sampled_slot() -> None:
    target = StubTarget(order=1, scale=1.0)
    params = sampled(min_p=0.2)
    tokens, _ = speculate(
        LosslessVerifier(target), target, wrong(target), [PROMPT], [params], count=40, num_speculative_tokens=4
    )
    row = [*PROMPT, *tokens[0]]
    for end in range(len(PROMPT), len(row)):
        raw = target.logits_of(row[:end]).softmax(0)
        assert raw[row[end]] >= 0.2 * raw.max() * 0.999


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 5])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 2.0, "top_k": 7}, {"top_p": 0.8, "presence_penalty": 1.0}, {"min_p": 0.1}], ids=str
)
def test_gumbel_coupling_is_plain_decoding(
    settings: dict[str, object], drafter: str, num_speculative_tokens: int
) -> None:
    target = StubTarget()
    params = sampled(coupling="gumbel", **settings)
    tokens, verdicts = speculate(
        LosslessVerifier(target),
        target,
        DRAFTERS[drafter](target),
        [PROMPT],
        [params],
        count=20,
        num_speculative_tokens=num_speculative_tokens,
    )
    assert tokens[0] == plain_tokens(target, PROMPT, 20, params)
    if drafter == "oracle":
        assert all(verdict.accepted == verdict.examined for verdict in verdicts[0])


@pytest.mark.parametrize("params", [SamplingParams(), sampled(coupling="gumbel"), SamplingParams(no_repeat_ngram=30)])
def test_a_wrong_first_token_is_never_accepted(params: SamplingParams) -> None:
    target = StubTarget()
    tokens, verdicts = speculate(
        LosslessVerifier(target), target, wrong(target), [PROMPT], [params], count=12, num_speculative_tokens=1
    )
    assert [verdict.accepted for verdict in verdicts[0]] == [0] * 12
    assert tokens[0] == plain_tokens(target, PROMPT, 12, params)


def test_the_scan_stops_at_the_first_rejection() -> None:
    target = StubTarget(order=1)
    a, b, c, d = plain_tokens(target, PROMPT, 4)
    verdict = verify_one(target, PROMPT, Draft(((a + 1) % 96, b, c)), SamplingParams())
    assert (verdict.token_ids, verdict.accepted, verdict.examined) == ((a,), 0, 1)
    verdict = verify_one(target, PROMPT, Draft((a, (b + 1) % 96, c)), SamplingParams())
    assert (verdict.token_ids, verdict.accepted, verdict.examined) == ((a, b), 1, 2)
    assert verdict.deciders == ("drafter", "target")
    verdict = verify_one(target, PROMPT, Draft((a, b, c)), SamplingParams())
    assert (verdict.token_ids, verdict.accepted, verdict.examined) == ((a, b, c, d), 3, 3)
    assert verdict.deciders == ("drafter",) * 3 + ("target",)
    verdict = verify_one(target, PROMPT, Draft(()), SamplingParams())
    assert (verdict.token_ids, verdict.accepted, verdict.examined) == ((a,), 0, 0)
