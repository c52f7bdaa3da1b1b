"""Losses and candidate sets, held to plain sums over the whole vocabulary."""

from __future__ import annotations

import math

import pytest
import torch

from slimtier.train.candidates import LEADING, Candidates, all_candidates, shared_candidates
from slimtier.train.config import LossKind
from slimtier.train.losses import labels_of, losses_of

VOCAB, TOP, SLOTS = 40, 6, 9
CPU = torch.device("cpu")


def targets(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """top_ids and top_logprobs [SLOTS, TOP], the most probable first."""
    torch.manual_seed(seed)
    values, ids = (torch.randn(SLOTS, VOCAB) * 2).log_softmax(1).topk(TOP)
    return ids, values


def plain(kind: LossKind, ids: list[int], probs: list[float], logits: list[float], eta: float) -> tuple[float, float]:
    """Loss and acceptance of one slot, bucket by bucket."""
    total = sum(map(math.exp, logits))
    draft = [math.exp(logits[token]) / total for token in ids]
    pairs = [*zip(probs, draft, strict=True), (1 - sum(probs), 1 - sum(draft))]
    acceptance = sum(min(pair) for pair in pairs)
    kl = sum(p * math.log(p / q) for p, q in pairs if p > 0)
    share = math.exp(-eta * acceptance)
    found = {
        "kl": kl,
        "ce": -math.log(draft[0]),
        "tv": 1 - acceptance,
        "lk": share * kl + (1 - share) * (1 - acceptance),
    }
    return found[kind], acceptance


@pytest.mark.parametrize("kind", ["kl", "ce", "tv", "lk"])
def test_equals_plain_sums(kind: LossKind) -> None:
    ids, logprobs = targets()
    scores = torch.randn(SLOTS, VOCAB) * 2
    everything = all_candidates(VOCAB, None, CPU)
    got = losses_of(scores, labels_of(ids, logprobs, everything), everything, kind, eta=3.0)
    for slot in range(SLOTS):
        loss, acceptance = plain(kind, ids[slot].tolist(), logprobs[slot].exp().tolist(), scores[slot].tolist(), 3.0)
        assert float(got.loss[slot]) == pytest.approx(loss, rel=1e-4)
        assert float(got.acceptance[slot]) == pytest.approx(acceptance, rel=1e-4)
        assert bool(got.top1[slot]) == (int(scores[slot].argmax()) == int(ids[slot, 0]))


@pytest.mark.parametrize("kind", ["kl", "tv", "lk"])
def test_the_target_itself_has_no_loss_and_no_slope(kind: LossKind) -> None:
    ids, logprobs = targets()
    rest = (1 - logprobs.exp().sum(1, keepdim=True)) / (VOCAB - TOP)
    scores = rest.log().expand(-1, VOCAB).scatter(1, ids, logprobs).requires_grad_()
    everything = all_candidates(VOCAB, None, CPU)
    got = losses_of(scores, labels_of(ids, logprobs, everything), everything, kind, eta=3.0)
    torch.testing.assert_close(got.loss, torch.zeros(SLOTS), atol=1e-5, rtol=0)
    if kind == "kl":
        (slope,) = torch.autograd.grad(got.loss.sum(), scores)
        torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-5, rtol=0)


def test_lk_weighs_each_slot_by_its_own_acceptance_and_not_through_it() -> None:
    ids, logprobs = targets()
    scores = (torch.randn(SLOTS, VOCAB) * 2).requires_grad_()
    everything = all_candidates(VOCAB, None, CPU)
    labels = labels_of(ids, logprobs, everything)
    slopes = {}
    for kind in ("kl", "tv", "lk"):
        losses = losses_of(scores, labels, everything, kind, eta=3.0)  # type: ignore[arg-type]
        (slopes[kind],) = torch.autograd.grad(losses.loss.sum(), scores)
    share = (-3.0 * losses.acceptance)[:, None].exp()
    torch.testing.assert_close(slopes["lk"], share * slopes["kl"] + (1 - share) * slopes["tv"])


def test_a_trimmed_head_learns_the_renormalised_rest_and_skips_what_it_cannot_say() -> None:
    ids, logprobs = targets()
    lost = int(ids[0, 0])  # slot 0's first choice
    kept = torch.tensor([token for token in range(VOCAB) if token not in (lost, int(ids[1, 1]))])
    known = all_candidates(VOCAB, kept, CPU)
    labels = labels_of(ids, logprobs, known)
    assert not bool(labels.usable[0])
    assert bool(labels.usable[1])
    probs = logprobs[1].exp()
    wanted = probs / (1 - probs[1])
    wanted[1] = 0
    torch.testing.assert_close(labels.target_probs[1], wanted)
    losses = losses_of(torch.randn(SLOTS, len(kept)), labels, known, "kl", 3.0)
    assert float(losses.loss[0]) == 0
    assert float(losses.loss[1]) > 0


def sampled(size: int, seed: int = 0, total: int = 2000) -> tuple[Candidates, torch.Tensor]:
    torch.manual_seed(1)
    top_ids = torch.stack([torch.randperm(300)[:16] for _ in range(30)])
    return shared_candidates(all_candidates(total, None, CPU), top_ids, size, seed), top_ids


def test_a_shared_set_has_every_leading_token() -> None:
    candidates, top_ids = sampled(400)
    assert candidates.ids is not None
    assert len(candidates.ids) == len(candidates.ids.unique()) == 400
    assert bool((candidates.column[top_ids[:, :LEADING]] >= 0).all())
    assert candidates.ids[candidates.column[top_ids[:, 0]]].tolist() == top_ids[:, 0].tolist()
    again, other = sampled(400)[0], sampled(400, seed=1)[0]
    assert again.ids is not None
    assert other.ids is not None
    assert torch.equal(again.ids, candidates.ids)
    assert not torch.equal(other.ids, candidates.ids)


def test_leading_tokens_stay_when_they_are_more_than_asked_for() -> None:
    candidates, top_ids = sampled(64)
    assert bool((candidates.column[top_ids[:, :LEADING]] >= 0).all())
    assert candidates.log_weights is not None
    assert int((candidates.log_weights > 0).sum()) == 16  # a quarter of what was asked for is still sampled


def test_a_set_that_would_hold_everything_is_the_vocabulary() -> None:
    assert sampled(300, total=300)[0].ids is None


def test_the_normaliser_is_unbiased() -> None:
    torch.manual_seed(2)
    logits = torch.randn(2000)
    sums = []
    for seed in range(200):
        candidates, _ = sampled(500, seed)
        assert candidates.ids is not None
        assert candidates.log_weights is not None
        sums.append(float((logits[candidates.ids] + candidates.log_weights).exp().sum()))
    assert sum(sums) / len(sums) == pytest.approx(float(logits.exp().sum()), rel=0.01)


def test_what_is_no_candidate_counts_to_the_rest() -> None:
    candidates, _ = sampled(64)
    top_ids = torch.tensor([[int(token) for token in (candidates.column >= 0).nonzero()[:2]] + [1999, 1998]])
    assert candidates.column[top_ids[0, 2:]].tolist() == [-1, -1]
    labels = labels_of(top_ids, torch.tensor([[0.5, 0.2, 0.1, 0.1]]).log(), candidates)
    torch.testing.assert_close(labels.target_probs, torch.tensor([[0.5, 0.2, 0.0, 0.0]]))
    torch.testing.assert_close(labels.target_rest, torch.tensor([0.3]))
