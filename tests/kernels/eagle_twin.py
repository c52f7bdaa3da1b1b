"""An EAGLE-3 drafter in plain torch, as its papers and checkpoints write it, without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from slimtier.kernels import naive


@dataclass
class Twin:
    """Weights as float tensors; `norms` hidden, final, and features or None, [pieces, features / pieces]."""

    options: dict[str, Any]
    embedding: torch.Tensor
    fuse: torch.Tensor
    norms: dict[str, torch.Tensor | None]
    layers: list[dict[str, torch.Tensor | None]]
    head: torch.Tensor
    rope: tuple[torch.Tensor, torch.Tensor]
    head_dim: int
    eps: float

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        norm = self.norms["features"]
        if norm is not None:
            features = naive.rms_norm(features.view(-1, *norm.shape), norm, self.eps).reshape(features.shape)
        return features @ self.fuse.T

    def forward(self, tokens: torch.Tensor, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens [n], feature [n, d] at positions 0 …"""
        first = self.layers[0]
        normed = naive.rms_norm(feature, self.norms["hidden"], self.eps)
        both = torch.cat((naive.rms_norm(self.embedding[tokens], first["input_norm"], self.eps), normed), dim=1)
        x = normed if self.options["norm_before_residual"] else feature
        for layer in self.layers:
            into = both if layer is first else naive.rms_norm(x, layer["input_norm"], self.eps)
            x = x + self.attention(layer, into)
            m = naive.rms_norm(x, layer["mlp_norm"], self.eps)
            x = x + naive.act_mul(m @ layer["gate"].T, m @ layer["up"].T, False) @ layer["down"].T
        hidden = naive.rms_norm(x, self.norms["final"], self.eps)
        return hidden, hidden if self.options["norm_output"] else x

    def attention(self, layer: dict[str, torch.Tensor | None], x: torch.Tensor) -> torch.Tensor:
        cos, sin = (table[: len(x), None] for table in self.rope)
        q, k, v = (x @ layer[p].T + (0.0 if layer[f"{p}_bias"] is None else layer[f"{p}_bias"]) for p in "qkv")
        q, k, v = (a.view(len(x), -1, self.head_dim) for a in (q, k, v))
        out = naive.attention(naive.rope(q, cos, sin) * self.head_dim**-0.5, naive.rope(k, cos, sin), v, 0)
        return out.flatten(1) @ layer["o"].T

    def chain(self, tokens: torch.Tensor, features: torch.Tensor, steps: int) -> tuple[list[int], list[float]]:
        """The greedy chain of one row, every step over the whole history again."""
        tokens, feature = tokens.clone(), self.fused(features)
        ids, probabilities = [], []
        for _ in range(steps):
            hidden, state = self.forward(tokens, feature)
            best = (hidden[-1] @ self.head.T).softmax(0).max(0)
            ids.append(int(best.indices))
            probabilities.append(float(best.values))
            tokens, feature = torch.cat((tokens, best.indices[None])), torch.cat((feature, state[-1:]))
        return ids, probabilities
