"""The tokens that the draft's normaliser runs over: all that the head has, or a few thousand that stand for them.

A shared set holds each label's most probable tokens, the commonest of the others, and a uniform sample of the rest,
each of which counts for many (sampled softmax: their scores are raised by the log of that number, which leaves the
normaliser unbiased).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

LEADING = 8  # each label's tokens that are always in the set
_SAMPLED = 0.25  # at least this part of the set is sampled
_CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 64 << 20}  # of scores; on a CPU few enough to stay in its cache


def slots_at_once(width: int, device: torch.device) -> int:
    """So many slots, each with float32 scores of `width` tokens, are worked on at a time."""
    return max(1, _CHUNK_BYTES[device.type] // (4 * width))


@dataclass(frozen=True, slots=True)
class Candidates:
    """ids [C] (None: all that the head has, in its order); log_weights [C] (None: all 0); column [vocab]: where a
    token is among them, -1 if nowhere; known [vocab]: whether the head can propose it at all."""

    ids: torch.Tensor | None
    log_weights: torch.Tensor | None
    column: torch.Tensor
    known: torch.Tensor


def all_candidates(vocab_size: int, head_ids: torch.Tensor | None, device: torch.device) -> Candidates:
    """Everything the head has: `head_ids` (None: the whole vocabulary)."""
    own = torch.arange(vocab_size, device=device) if head_ids is None else head_ids
    column = torch.full((vocab_size,), -1, dtype=torch.int64, device=device)
    column[own] = torch.arange(len(own), device=device)
    return Candidates(None, None, column, column >= 0)


def shared_candidates(
    everything: Candidates,
    top_ids: torch.Tensor,
    size: int,
    seed: int,
    total: Callable[[torch.Tensor], torch.Tensor] = lambda counts: counts,
) -> Candidates:
    """About `size` tokens for labels top_ids [A, n], the most probable first; `total` sums counts over processes, so
    that all of them work with one set."""
    vocab = len(everything.known)
    counts = torch.bincount(top_ids.flatten(), minlength=vocab)
    leading = torch.bincount(top_ids[:, :LEADING].flatten(), minlength=vocab)
    counts, leading = total(torch.stack((counts, leading))).unbind()
    known = everything.known
    counts = torch.where(leading > 0, counts + int(1e12), counts).masked_fill(~known, -1)
    certain = max(int(((leading > 0) & known).sum()), size - math.ceil(size * _SAMPLED))
    sampled = max(size - certain, math.ceil(size * _SAMPLED))
    order = counts.sort(descending=True, stable=True).indices[: int(known.sum())]
    certain_ids, others = order[:certain], order[certain:]
    if len(others) <= sampled:
        return everything
    generator = torch.Generator().manual_seed(seed)
    picked = others[torch.randperm(len(others), generator=generator)[:sampled].to(others.device)]
    ids = torch.cat((certain_ids.sort().values, picked.sort().values))
    log_weights = torch.zeros(len(ids), device=ids.device)
    log_weights[certain:] = math.log(len(others) / sampled)
    column = torch.full_like(everything.column, -1)
    column[ids] = torch.arange(len(ids), device=ids.device)
    return Candidates(ids, log_weights, column, known)
