"""A head over a part of the vocabulary (FR-Spec, Zhao et al. 2025; VocabTrim, Goel et al. 2025)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class TrimmedHead(nn.Module):
    """logits = W h for the tokens `ids` [size] (distinct, ascending), W [size, hidden]; -inf for all others."""

    ids: torch.Tensor

    def __init__(self, vocab_size: int, hidden_size: int, size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.weight = nn.Parameter(torch.empty(size, hidden_size))
        nn.init.normal_(self.weight, std=0.02)
        self.register_buffer("ids", torch.arange(size))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = F.linear(hidden, self.weight)
        return rows.new_full((len(rows), self.vocab_size), -torch.inf).index_copy(1, self.ids, rows)

    def scores(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        if ids is None:
            return F.linear(hidden, self.weight)
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        missing = self.ids[place] != ids
        return F.linear(hidden, self.weight[place]).masked_fill(missing, -torch.inf)
