"""A first layer whose first key-value head looks at its own position and passes the token's embedding on.

The residual stream of EAGLE-3's layer carries the feature; the embedding of x_{t+1} reaches it through attention only.
What ridge regression finds that the embedding says of the target's next state can be put there, as far as one head's
rank allows, if that head attends to its own position. It does if all its queries and keys are one vector u, scaled
alike: after the rotation their product is sum_i a_i cos(theta_i · distance), which is largest at distance 0. A common
direction of all embeddings gives the scale.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from slimtier.drafters.eagle.network import Layer

_FALLING = 0.75  # a_i = 0.75^i: over bases of 1e4 to 1e6 the product falls by 15 to 20 % from distance 0 to any other
_SHARPNESS = 20.0  # the score of the own position: a neighbour's weight is about exp(-0.18 · 20)
_PENALTY = 1e-3


def start_own_token(layer: Layer, embedding: torch.Tensor, frequencies: torch.Tensor, passed: torch.Tensor) -> None:
    """Set the layer's first key-value head, and the query heads that share it, so that about passed · norm(e) is added
    to the residual stream. embedding [vocab, hidden]; frequencies [vocab]: how often each token comes, sum 1;
    passed [hidden, hidden], of which the head's rank is kept."""
    config = layer.config
    dim, group = config.head_dim, config.num_heads // config.num_kv_heads
    normed = F.rms_norm(embedding, embedding.shape[1:], eps=config.norm_eps).double()
    moments = normed.T * frequencies @ normed
    common = direction_of_ones(normed, frequencies)
    falling = _FALLING ** torch.arange(dim // 2, dtype=torch.float64)
    pattern = torch.cat((falling, falling)).sqrt()
    pattern *= math.sqrt(_SHARPNESS * math.sqrt(dim)) / pattern.norm()
    read, written = halves(passed.double(), moments, dim)
    hidden = config.hidden_size
    with torch.no_grad():
        for weight, rows in (
            (layer.q_proj.weight, group * dim),
            (layer.k_proj.weight, dim),
            (layer.v_proj.weight, dim),
        ):
            weight[:rows] = 0.0
        layer.q_proj.weight[: group * dim, :hidden] = torch.outer(pattern, common).repeat(group, 1).float()
        layer.k_proj.weight[:dim, :hidden] = torch.outer(pattern, common).float()
        layer.v_proj.weight[:dim, :hidden] = read.float()
        layer.o_proj.weight[:, : group * dim] = written.repeat(1, group).float() / group


def direction_of_ones(vectors: torch.Tensor, weights: torch.Tensor, zeros: torch.Tensor | None = None) -> torch.Tensor:
    """u [hidden] float64 such that u · v is about 1 for the vectors [N, hidden], weighed by `weights` [N], sum 1; and
    about 0 for those in `zeros`."""
    target = vectors.T @ weights.double()
    moments = vectors.T * weights.double() @ vectors
    if zeros is not None:
        moments = moments + zeros.T @ zeros / len(zeros)
    solved: torch.Tensor = torch.linalg.solve(moments + torch.diag(moments.diagonal() * _PENALTY), target)
    return solved


def halves(passed: torch.Tensor, moments: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """read [rank, hidden] and written [hidden, rank] with written · read · x nearest to passed · x over x of the second
    moments; read · x has mean square 1."""
    values, vectors = torch.linalg.eigh(moments)
    values = values.clamp(min=float(values.max()) * 1e-9)
    root = vectors * values.sqrt() @ vectors.T
    inverse = vectors / values.sqrt() @ vectors.T
    left, sizes, right = torch.linalg.svd(passed @ root)
    read = right[:rank] @ inverse
    written = left[:, :rank] * sizes[:rank]
    missing = rank - len(read)
    return F.pad(read, (0, 0, 0, missing)), F.pad(written, (0, missing))
