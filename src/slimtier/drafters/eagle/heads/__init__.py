"""The drafter's heads, one interface: hidden states to logits over the target's vocabulary.

`logits(hidden)` is [N, vocab], -inf for tokens the head cannot propose; `scores` are what a draft is trained with: the
logits of some tokens only, or of all that the head has. The fused forms are the kernels'.
"""

from __future__ import annotations

from typing import Protocol

import torch

from slimtier.drafters.eagle.config import HeadConfig


class Head(Protocol):
    """A head of a drafter (an nn.Module)."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden] -> [N, vocab], -inf where the head has no row."""

    def scores(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden] and token ids [C] -> [N, C]; None: every token the head has, in its own order."""


def make_head(config: HeadConfig, hidden_size: int) -> torch.nn.Module:
    """The head that the config asks for, with random weights."""
    from slimtier.drafters.eagle.heads.full import FullHead
    from slimtier.drafters.eagle.heads.routed import RoutedHead
    from slimtier.drafters.eagle.heads.slim import SlimHead
    from slimtier.drafters.eagle.heads.trimmed import TrimmedHead

    if config.kind == "full":
        return FullHead(config.vocab_size, hidden_size)
    if config.kind == "slim":
        return SlimHead(config.vocab_size, hidden_size, config.rank)
    if config.kind == "trimmed":
        return TrimmedHead(config.vocab_size, hidden_size, config.size)
    return RoutedHead(config.vocab_size, hidden_size, config.rank, config.size)
