"""The drafter's network in torch: the reference, what is trained, and what runs where our kernels do not.

Position t of a row holds the token x_{t+1} and the target's features of position t; its output speaks of x_{t+2}.
The captured streams are fused once (`fuse`); at later draft steps the drafter's own state takes the feature's place.
Attention is the caller's: training unrolls several draft steps at once, decoding appends to a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.heads import make_head
from slimtier.models.rope import rope_tables

# (layer index, q [N, heads, dim], k, v [N, kv_heads, dim]) -> [N, heads, dim]; q and k are rotated
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """A decoder layer; the first one reads [norm(embedding); norm(feature)], twice the width."""

    def __init__(self, config: EagleConfig, index: int) -> None:
        super().__init__()
        self.config, self.index, self.first = config, index, index == 0
        hidden, dim, eps = config.hidden_size, config.head_dim, config.norm_eps
        width = 2 * hidden if self.first else hidden
        self.input_layernorm = RmsNorm(hidden, eps)
        if self.first:
            self.hidden_norm = RmsNorm(hidden, eps)
        self.q_proj = nn.Linear(width, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)

    def inputs(self, embedded: torch.Tensor, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the projections read, and the residual stream [N, hidden]."""
        if not self.first:
            return self.input_layernorm(feature), feature
        normed = self.hidden_norm(feature)
        residual = normed if self.config.norms.before_residual else feature
        return torch.cat((self.input_layernorm(embedded), normed), dim=-1), residual

    def keys_values(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v [N, kv_heads, dim], not yet rotated."""
        shape = (-1, self.config.num_kv_heads, self.config.head_dim)
        return self.k_proj(inputs).view(shape), self.v_proj(inputs).view(shape)

    def queries(self, inputs: torch.Tensor) -> torch.Tensor:
        """q [N, heads, dim], not yet rotated."""
        queries: torch.Tensor = self.q_proj(inputs)
        return queries.view(-1, self.config.num_heads, self.config.head_dim)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output from what attention gave [N, heads, dim]."""
        hidden = residual + self.o_proj(attended.flatten(1))
        normed = self.post_attention_layernorm(hidden)
        out: torch.Tensor = hidden + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return out


class EagleNetwork(nn.Module):
    """EAGLE-3's drafter. `embedding` [vocab, hidden] is the target's own, frozen and never saved with the drafter."""

    embedding: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: EagleConfig, embedding: torch.Tensor, max_positions: int) -> None:
        super().__init__()
        self.config = config
        streams = len(config.capture)
        width = streams * config.target_hidden_size
        if config.norms.before_fc:
            self.fc_input_norm = RmsNorm(width, config.norm_eps)
        if config.norms.fc:
            self.fc_norms = nn.ModuleList(RmsNorm(config.target_hidden_size, config.norm_eps) for _ in config.capture)
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.head = make_head(config.head, config.hidden_size)
        self.register_buffer("embedding", embedding, persistent=False)
        cos, sin = rope_tables(config.rope, config.head_dim, max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """features [N, streams · target_hidden] -> [N, hidden]."""
        if self.config.norms.before_fc:
            features = self.fc_input_norm(features)
        if self.config.norms.fc:
            parts = features.chunk(len(self.config.capture), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        fused: torch.Tensor = self.fc(features)
        return fused

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of x [N, heads, dim] at positions [N], the halves as Llama has them."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    def forward(
        self, tokens: torch.Tensor, feature: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: tokens [N], feature [N, hidden] (fused, or the state fed back), positions [N].
        Returns hidden [N, hidden], what the head takes, and state [N, hidden], what is fed back."""
        out = feature
        embedded = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            inputs, residual = layer.inputs(embedded, out)
            keys, values = layer.keys_values(inputs)
            queries = self.rotate(layer.queries(inputs), positions)
            out = layer.finish(residual, attend(layer.index, queries, self.rotate(keys, positions), values))
        hidden = self.norm(out)
        return hidden, hidden if self.config.norms.output else out
