"""SpecVocab's head (Samsung 2026): a low-rank router picks rows, which get exact logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from slimtier.drafters.eagle.heads.slim import SlimHead


class RoutedHead(nn.Module):
    """logits = W h for the `size` tokens whose router scores are largest, W [vocab, hidden]; -inf for all others."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.router = SlimHead(vocab_size, hidden_size, rank)
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.normal_(self.weight, std=0.02)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        chosen = self.router.logits(hidden).topk(min(self.size, len(self.weight)), dim=1).indices
        if len(hidden) * self.size > len(self.weight):  # then one product moves less than copies of the rows
            exact = self.scores(hidden, None).gather(1, chosen)
        else:
            exact = torch.bmm(self.weight[chosen], hidden[:, :, None])[:, :, 0]
        return exact.new_full((len(exact), len(self.weight)), -torch.inf).scatter(1, chosen, exact)

    def scores(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        """The exact logits, whatever the router would pick: what the drafter is trained with."""
        return F.linear(hidden, self.weight if ids is None else self.weight[ids])
