"""SlimSpec's head: low rank, over the full vocabulary (Plaksin et al. 2026, section 4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class SlimHead(nn.Module):
    """logits = W_up (W_down h), W_down [rank, hidden], W_up [vocab, rank]; no bias, nothing between."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, hidden_size))
        self.up = nn.Parameter(torch.empty(vocab_size, rank))
        nn.init.normal_(self.down, std=hidden_size**-0.5)
        nn.init.normal_(self.up, std=0.02)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(hidden, self.down), self.up)

    def scores(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        return F.linear(F.linear(hidden, self.down), self.up if ids is None else self.up[ids])
