"""A conversation that the target has answered, with what training needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slimtier.models.base import Target

TOO_LONG, NO_ANSWER, NOT_FINITE = (  # why a conversation is not kept
    "the prompt is longer than max_prompt_tokens",
    "no answer was written",
    "a state is not finite in float16",
)


@dataclass(frozen=True, slots=True)
class Answered:
    """One finished conversation: token_ids [n]; answer [n], which of them the target wrote; features [n, S · hidden];
    top_ids and top_logprobs [answer tokens, top_n], the distribution at temperature 1 of each of those;
    final [n, hidden], what the target's head took. The last token was never read: its features are zero, and final
    leaves it out."""

    number: int
    token_ids: torch.Tensor
    answer: torch.Tensor
    features: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    final: torch.Tensor


def pack(
    number: int,
    spoken: tuple[Sequence[int], Sequence[bool]],
    features: torch.Tensor,
    final: torch.Tensor,
    tops: tuple[torch.Tensor, torch.Tensor],
) -> Answered | None:
    """The row of the first n of the tokens and answer marks `spoken`, of which all but the last have features
    [n - 1, S · hidden]; None where a state is not finite in float16."""
    features = features.cpu()
    if not bool(torch.isfinite(features).all()):
        return None
    count = len(features) + 1
    return Answered(
        number,
        torch.tensor(spoken[0][:count], dtype=torch.int32),
        torch.tensor(spoken[1][:count], dtype=torch.uint8),
        torch.cat((features, features.new_zeros(1, features.shape[1]))),
        tops[0].to(torch.int32),
        tops[1].half(),
        final.float().cpu(),
    )


def most_probable(target: Target, hidden: torch.Tensor, top_n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and log probabilities [M, top_n] of the most probable tokens after hidden [M, hidden]."""
    fused = getattr(target, "topk", None)
    if fused is not None:
        values, ids, logsumexp = fused(hidden, top_n)
        return ids, values - logsumexp[:, None]
    best = target.head(hidden).log_softmax(1).topk(top_n, dim=1)
    return best.indices.cpu(), best.values.cpu()
