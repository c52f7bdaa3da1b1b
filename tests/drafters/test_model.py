"""A model as a drafter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from slimtier.drafters.base import DraftContext
from slimtier.drafters.model import ModelDrafter
from slimtier.errors import NonFiniteError
from slimtier.noise import Noise
from slimtier.sampling import probabilities, process, sample
from slimtier.types import Draft, Route, SamplingParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubTarget, plain_tokens, speculate

PROMPT = (10, 3, 77, 5)
SETTINGS = {
    "greedy": SamplingParams(),
    "penalty": SamplingParams(repetition_penalty=1.5),
    "T1": SamplingParams(temperature=1.0, seed=4),
    "filters": SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, presence_penalty=0.5, seed=4),
    "gumbel": SamplingParams(temperature=1.0, coupling="gumbel", seed=4),
}


def context(tokens: Sequence[int], params: SamplingParams | None = None, key: int = 0) -> DraftContext:
    return DraftContext(key, tokens, len(PROMPT), params or SamplingParams(), Noise(4, "drafter"))


def draft(drafter: ModelDrafter, tokens: Sequence[int], limit: int, params: SamplingParams | None = None) -> Draft:
    return drafter.propose([context(tokens, params)], [limit])[0]


@pytest.mark.parametrize("setting", ["greedy", "penalty", "gumbel"])
def test_a_model_drafts_its_own_continuation(setting: str) -> None:
    model, params = StubTarget(), SETTINGS[setting]
    proposal = draft(ModelDrafter(model), PROMPT, 5, params)
    assert list(proposal.token_ids) == plain_tokens(model, PROMPT, 5, params, Noise(4))
    assert proposal.probs is None


@pytest.mark.parametrize("setting", ["T1", "filters"])
def test_the_reported_distribution_is_the_one_drawn_from_bit_for_bit(setting: str) -> None:
    """Replaying the noise over the reported distributions gives the drafted tokens."""
    model, params = StubTarget(), SETTINGS[setting]
    proposal = draft(ModelDrafter(model), PROMPT, 6, params)
    noise, history = Noise(4, "drafter"), list(PROMPT)
    assert proposal.probs is not None
    assert proposal.probs.shape == (6, 96)
    for token, reported in zip(proposal.token_ids, proposal.probs, strict=True):
        logits = process(model.logits_of(history), history, len(PROMPT), params)
        assert torch.equal(reported, probabilities(logits, params))
        assert sample(reported, noise.uniform()) == token
        history.append(token)


def test_greedy_drafting_never_asks_for_logits() -> None:
    model = StubTarget()
    draft(ModelDrafter(model), PROMPT, 4)
    assert model.heads == [("argmax", 1)] * 4


def test_only_new_tokens_are_fed_and_a_rejection_is_cropped() -> None:
    model = StubTarget()
    drafter = ModelDrafter(model)
    first = draft(drafter, PROMPT, 3).token_ids
    assert model.calls == [(4,), (1,), (1,)]
    model.calls.clear()
    # all three accepted and a bonus token: the third was never fed
    row = [*PROMPT, *first, 8]
    second = draft(drafter, row, 3).token_ids
    assert model.calls == [(2,), (1,), (1,)]
    model.calls.clear()
    # the first rejected, another in its place
    row = [*row, (second[0] + 1) % 96]
    assert list(draft(drafter, row, 2).token_ids) == plain_tokens(model, row, 2)
    assert model.calls == [(1,), (1,)]
    # an entirely different row under the same key
    assert list(draft(drafter, (1, 2, 3), 2).token_ids) == plain_tokens(model, (1, 2, 3), 2)
    # the same row again: the last token is fed once more, for its hidden state
    assert list(draft(drafter, (1, 2, 3), 2).token_ids) == plain_tokens(model, (1, 2, 3), 2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("num_speculative_tokens", [1, 4])
def test_drafting_for_itself_is_always_accepted(setting: str, num_speculative_tokens: int) -> None:
    model, params = StubTarget(), SETTINGS[setting]
    tokens, verdicts = speculate(
        LosslessVerifier(model),
        model,
        ModelDrafter(model),
        [PROMPT],
        [params],
        count=20,
        num_speculative_tokens=num_speculative_tokens,
    )
    assert all(verdict.accepted == verdict.examined for verdict in verdicts[0])
    if setting not in ("T1", "filters"):
        assert tokens[0] == plain_tokens(model, PROMPT, 20, params)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_route_of_the_target_drafts_from_a_cache_of_its_own(setting: str) -> None:
    model, params = StubTarget(route_noise=2.0), SETTINGS[setting]
    route = Route.skipping(4, [1, 2])
    prompts = [PROMPT, (1,), tuple(range(20))]
    drafter = ModelDrafter(model, route, name="layer_skip")
    tokens, verdicts = speculate(
        LosslessVerifier(model), model, drafter, prompts, [params] * 3, count=24, num_speculative_tokens=3
    )
    judged = [(verdict.accepted, verdict.examined) for row in verdicts for verdict in row]
    assert 0 < sum(accepted for accepted, _ in judged) < sum(examined for _, examined in judged)
    if setting not in ("T1", "filters"):
        assert tokens == [plain_tokens(model, prompt, 24, params) for prompt in prompts]
    assert drafter.name == "layer_skip"


# A draft context shorter than the target's.


@pytest.mark.parametrize("length", [8, 15, 16, 17, 60])
def test_a_model_drafts_up_to_its_last_position_and_then_stops(length: int) -> None:
    target = StubTarget()
    small = StubTarget(max_positions=16)  # asserts that it is never taken further
    prompts = [tuple(range(length)), (1, 2)]
    tokens, verdicts = speculate(
        LosslessVerifier(target),
        target,
        ModelDrafter(small),
        prompts,
        [SamplingParams()] * 2,
        count=10,
        num_speculative_tokens=4,
    )
    assert tokens == [plain_tokens(target, prompt, 10) for prompt in prompts]
    assert [verdict.examined for verdict in verdicts[0]].count(0) >= (8 if length > 16 else 0)
    assert sum(verdict.accepted for verdict in verdicts[1]) > 0, "the short row still drafts"
    assert len(draft(ModelDrafter(small), tuple(range(16)), 4).token_ids) == 1
    assert len(draft(ModelDrafter(small), tuple(range(17)), 4).token_ids) == 0


def test_a_row_that_outgrows_its_cache_goes_on() -> None:
    model = StubTarget(max_positions=2000)
    drafter = ModelDrafter(model)
    row = [index % 96 for index in range(250)]
    for _ in range(4):
        row += draft(drafter, row, 100).token_ids
    assert row[250:] == plain_tokens(model, row[:250], 400)
    assert draft(drafter, row, 0).token_ids == ()


# Vocabularies of different sizes.


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("draft_size", [80, 120])
def test_padded_vocabularies(setting: str, draft_size: int) -> None:
    """The draft model has fewer or more ids than the target; its drafts are still drafts of the target's."""
    target = StubTarget(96)

    def logits_of(history: tuple[int, ...]) -> torch.Tensor:
        logits = target.logits_of(history)[:draft_size]
        padding = torch.full((max(0, draft_size - 96),), 50.0)  # untrained ids that would win everywhere
        return torch.cat([logits, padding])

    model = StubTarget(draft_size, logits_of=logits_of)
    drafter = ModelDrafter(model, vocab_size=96)
    params = SETTINGS[setting]
    prompts = [(10, 3, 5), (90, 3)]
    tokens, verdicts = speculate(
        LosslessVerifier(target), target, drafter, prompts, [params] * 2, count=15, num_speculative_tokens=4
    )
    if setting not in ("T1", "filters"):
        assert tokens == [plain_tokens(target, prompt, 15, params) for prompt in prompts]
    assert sum(verdict.accepted for verdict in verdicts[0]) > 0
    proposal = draft(drafter, (10, 3, 5), 4, params)
    assert all(token < 96 for token in proposal.token_ids)
    if proposal.probs is not None:
        assert proposal.probs.shape == (4, 96)
        assert bool((proposal.probs[:, draft_size:] == 0).all())
    if draft_size < 96:
        assert sum(verdict.examined for verdict in verdicts[1]) == 0, "token 90 cannot be fed to the model"


# Memory and failure.


def test_reset_forgets_rows() -> None:
    model = StubTarget()
    drafter = ModelDrafter(model)
    drafter.propose([context(PROMPT, key=1), context(PROMPT, key=2)], [2, 2])
    drafter.reset([1, 7])
    assert set(drafter._rows) == {2}
    drafter.reset()
    assert drafter._rows == {}
    assert list(draft(drafter, PROMPT, 3).token_ids) == plain_tokens(model, PROMPT, 3)


def test_a_draft_ends_where_a_constraint_ends() -> None:
    """The constraint allows nothing after token 20; the draft stops there and is not an error."""

    def ends_at_20(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if 20 in token_ids:
            return torch.full_like(logits, -torch.inf)
        logits[20] = 1e4 if len(token_ids) == 6 else -1e4
        return logits

    model = StubTarget()
    for settings in ({}, {"temperature": 1.0}, {"temperature": 1.0, "coupling": "gumbel"}):
        params = SamplingParams(processors=(ends_at_20,), **settings)
        proposal = draft(ModelDrafter(model), PROMPT, 8, params)
        assert len(proposal.token_ids) == 3
        assert proposal.token_ids[-1] == 20
        assert proposal.probs is None or proposal.probs.shape == (3, 96)
        with pytest.raises(NonFiniteError, match="banned"):
            draft(ModelDrafter(model), (1, 20), 4, params)
