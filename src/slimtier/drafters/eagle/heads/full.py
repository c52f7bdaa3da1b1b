"""The full head: one row of weights for each token of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class FullHead(nn.Module):
    """logits = W h, W [vocab, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.normal_(self.weight, std=0.02)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.weight)

    def scores(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        return F.linear(hidden, self.weight if ids is None else self.weight[ids])
