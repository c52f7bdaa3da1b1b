"""Losses of the draft against the target's most probable tokens and one bucket for all others.

kl: forward KL; ce: cross-entropy with the target's argmax; tv: total variation, 1 - acceptance probability; lk: the
LK-hybrid λ KL + (1 - λ) TV with λ = exp(-η α), α the acceptance probability (arXiv 2602.23881).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slimtier.train.candidates import Candidates
from slimtier.train.config import LossKind

_LEAST = 1e-6  # of a draft's rest: float32 cannot tell less from 1 - sum


@dataclass(frozen=True, slots=True)
class Labels:
    """Of M slots: columns [M, n] of the target's tokens among the candidates (-1: in the rest), target_probs [M, n] (0
    where the column is -1) and target_rest [M]; usable [M]: the head can propose the target's first choice."""

    columns: torch.Tensor
    target_probs: torch.Tensor
    target_rest: torch.Tensor
    usable: torch.Tensor


@dataclass(frozen=True, slots=True)
class Losses:
    """Of M slots: the loss [M], the acceptance probability sum min(target_probs, draft_probs) [M] over the buckets,
    and whether the draft's most probable candidate is the target's first choice [M]."""

    loss: torch.Tensor
    acceptance: torch.Tensor
    top1: torch.Tensor


def labels_of(top_ids: torch.Tensor, top_logprobs: torch.Tensor, candidates: Candidates) -> Labels:
    """top_ids [M, n], the most probable first, with their log probabilities. What the head cannot propose is left out
    and the others renormalised, as trimmed drafts are trained (SpecForge); a slot counts if its first choice stays."""
    probs = top_logprobs.exp()
    known = candidates.known[top_ids]
    lost = (probs * ~known).sum(1, keepdim=True)
    probs = probs * known / (1 - lost).clamp(min=_LEAST)
    columns = candidates.column[top_ids]
    probs = probs * (columns >= 0)
    rest = (1 - probs.sum(1)).clamp(min=0)
    return Labels(columns, probs, rest, known[:, 0])


def losses_of(scores: torch.Tensor, labels: Labels, candidates: Candidates, kind: LossKind, eta: float) -> Losses:
    """scores [M, C] float32, the draft's logits of the candidates."""
    weighted = scores if candidates.log_weights is None else scores + candidates.log_weights
    normaliser = weighted.logsumexp(1, keepdim=True)
    absent = labels.columns < 0
    picked = scores.gather(1, labels.columns.clamp(min=0)) - normaliser
    draft_logprobs = picked.masked_fill(absent, 0.0)
    draft_probs = picked.exp().masked_fill(absent, 0.0)
    draft_rest = (1 - draft_probs.sum(1)).clamp(min=_LEAST)
    target_probs, target_rest = labels.target_probs, labels.target_rest
    acceptance = torch.minimum(target_probs, draft_probs).sum(1) + torch.minimum(target_rest, draft_rest)
    if kind == "ce":
        loss = -picked[:, 0]
    elif kind == "tv":
        loss = 1 - acceptance
    else:
        entropy = (target_probs.xlogy(target_probs)).sum(1) + target_rest.xlogy(target_rest)
        loss = entropy - (target_probs * draft_logprobs).sum(1) - target_rest * draft_rest.log()
        if kind == "lk":
            share = (-eta * acceptance.detach()).exp()
            loss = share * loss + (1 - share) * (1 - acceptance)
    top1 = scores.detach().argmax(1) == labels.columns[:, 0]
    return Losses(loss.masked_fill(~labels.usable, 0.0), acceptance.detach(), top1)
