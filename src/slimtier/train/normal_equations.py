"""Sums over the capture from which a drafter's first weights are solved (ridge regression, activation-weighted SVD)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from slimtier.files import replacing, telling
from slimtier.train.answered import Answered


class NormalEquations:
    """Over slots t whose label x_{t+2} the target wrote: x = [embedding(x_{t+1}); streams of t], D wide, and
    y = the target's final hidden state at t + 1, after its norm. Sums in float64: xtx [D, D], xty [D, hidden],
    yty [hidden, hidden]. After `limit` slots no more are added: the sums are far wider than they are uncertain."""

    def __init__(self, embedding: torch.Tensor, width: int, limit: int = 100_000) -> None:
        self.embedding, self.limit = embedding, limit
        hidden = embedding.shape[1]
        size = hidden + width
        self.sums = {
            "xtx": torch.zeros(size, size, dtype=torch.float64),
            "xty": torch.zeros(size, hidden, dtype=torch.float64),
            "yty": torch.zeros(hidden, hidden, dtype=torch.float64),
            "count": torch.zeros(1, dtype=torch.int64),
        }

    def add(self, row: Answered) -> None:
        """Add the slots of one conversation."""
        if int(self.sums["count"]) >= self.limit:
            return
        slots = row.answer[2:].nonzero()[:, 0]
        inputs = torch.cat((self.embedding[row.token_ids[slots + 1].long()], row.features[slots].float()), dim=1)
        outputs = row.final[slots + 1]
        self.sums["xtx"] += (inputs.T @ inputs).double()
        self.sums["xty"] += (inputs.T @ outputs).double()
        self.sums["yty"] += (outputs.T @ outputs).double()
        self.sums["count"] += len(slots)

    def save(self, path: Path) -> None:
        """Write beside `path`, then rename."""
        with telling(path), replacing(path) as beside:
            save_file(self.sums, beside)

    def load(self, path: Path) -> None:
        """Go on from saved sums, if there are any."""
        if path.is_file():
            self.sums = load_file(path)
