"""The kernels once more, in plain torch and as their formulas are written: what the tests hold them to."""

from __future__ import annotations

import torch

GROUP = 32  # activations share a scale over this many k


def quantize(x: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [t, k] to integer codes [t, groups, 32] (zeros past k) and scales [t, groups]: max|x| / limit."""
    rows, k = x.shape
    groups = torch.nn.functional.pad(x, (0, -k % GROUP)).view(rows, -(-k // GROUP), GROUP)
    scales = groups.abs().amax(dim=2) / limit
    codes = torch.where(scales[..., None] > 0, groups * (1.0 / scales)[..., None], 0.0)
    return codes.round().clamp(-limit, limit), scales


def linear_codes(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, group: int, bits: int
) -> torch.Tensor:
    """x [t, k] times (scale · code + min)ᵀ, codes [n, k], scales and mins [n, groups]: integer products a group of k,
    with activations of 16 bits for 8-bit weights and of 8 bits for 4-bit weights. Returns float64 [t, n]."""
    activations, x_scales = quantize(x, 32767 if bits == 8 else 127)
    k = x.shape[1]
    used = activations.flatten(1)[:, :k].double()
    used_scales = x_scales.repeat_interleave(GROUP, dim=1)[:, :k].double()
    weights = codes.double() * scales.double().repeat_interleave(group, dim=1)[:, :k]
    if mins is not None:
        weights = weights + mins.double().repeat_interleave(group, dim=1)[:, :k]
    return (used * used_scales) @ weights.T


def linear(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x [t, k] times weights [n, k] transposed, in float64."""
    return x.double() @ weights.double().T


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def act_mul(gate: torch.Tensor, up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """silu(gate) · up, or gelu (tanh approximation)."""
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    return act * up


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of the last dimension [..., d] by angles given as cos and sin [..., d / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap · tanh(x / cap), or x when cap is 0."""
    return cap * torch.tanh(x / cap) if cap else x


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, *, window: int = 0, cap: float = 0.0
) -> torch.Tensor:
    """Causal attention of queries at positions start … : q [t, heads, d] (scaled), k and v [tokens, kv_heads, d];
    a query sees the last `window` keys up to its own (0 = all). Returns [t, heads, d]."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = softcap(torch.einsum("thd,shd->hts", q, keys), cap)
    query, key = torch.arange(start, start + q.shape[0])[:, None], torch.arange(k.shape[0])[None, :]
    hidden = key > query
    if window:
        hidden = hidden | (key <= query - window)
    return torch.einsum("hts,shd->thd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)
