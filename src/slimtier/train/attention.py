"""Attention over runs of slots, exact and without an L x L matrix: flash attention over the keys of the first draft
step, joined with the few keys of each slot's own later steps.

The parts of a softmax are joined by their logsumexps: out = sum_i exp(lse_i - lse) out_i. Backward needs nothing new:
the gradient of a part is that of attention whose output and logsumexp are the joined ones (as in ring attention,
Liu et al. 2023), which is what the flash kernels take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """Queries first to stop; query first + i sees the keys key_row to key_first + i, the last one included."""

    first: int
    stop: int
    key_row: int
    key_first: int

    def parts(self) -> Iterator[tuple[slice, bool]]:
        """The keys, in parts that flash attention can do: all of a slice, or a causal square."""
        if self.key_first > self.key_row:
            yield slice(self.key_row, self.key_first), False
        yield slice(self.key_first, self.key_first + self.stop - self.first), True


@dataclass(frozen=True, slots=True)
class Chain:
    """The keys and values of the slots' own steps 1 ... j, [M, j, kv_heads, dim]; every query sees its own j."""

    keys: torch.Tensor
    values: torch.Tensor


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: Sequence[Span],
    chain: Chain | None = None,
) -> torch.Tensor:
    """queries [M, heads, dim], keys and values [N, kv_heads, dim] -> [M, heads, dim]. The spans cover each query once.
    Scores are scaled by dim^-0.5. All is computed in the queries' type, which is float32 also where autocast makes
    that of the values bfloat16."""
    own = (None, None) if chain is None else (chain.keys.to(queries.dtype), chain.values.to(queries.dtype))
    keys, values = keys.to(queries.dtype), values.to(queries.dtype)
    with torch.autocast(queries.device.type, enabled=False):
        out: torch.Tensor = _Attention.apply(queries, keys, values, *own, tuple(spans))  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        own_k, own_v, spans = rest
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
        for span in spans:
            run = slice(span.first, span.stop)
            for keys, causal in span.parts():
                part = _flash(_by_group(q[run], k), _by_head(k[keys], q), _by_head(v[keys], q), causal)
                _join(out[run], lse[run], *part, begin=keys.start == span.key_row)
        if own_k is not None:
            scores = _own_scores(q, own_k)  # [M, heads, j]
            own_lse = scores.logsumexp(2)
            mixed = _mix((scores - own_lse[:, :, None]).exp(), own_v)
            _join(out, lse, mixed, own_lse, begin=False)
        ctx.spans = spans
        ctx.save_for_backward(q, k, v, own_k, own_v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, own_k, own_v, out, lse = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for span in ctx.spans:
            run = slice(span.first, span.stop)
            grad_run, q_run, out_run = (_by_group(x[run], k) for x in (grad, q, out))
            kept = _by_group(lse[run][:, :, None], k)[..., 0]
            for keys, causal in span.parts():
                k_part, v_part = _by_head(k[keys], q), _by_head(v[keys], q)
                dq, dk, dv = _flash_backward(grad_run, q_run, k_part, v_part, out_run, kept, causal)
                grad_q[run] += _ungroup(dq)
                grad_k[keys] += dk.sum(1).transpose(0, 1)
                grad_v[keys] += dv.sum(1).transpose(0, 1)
        if own_k is None:
            return grad_q, grad_k, grad_v, None, None, None
        weights = (_own_scores(q, own_k) - lse[:, :, None]).exp()  # [M, heads, j]
        slope = _products(grad, own_v) - (grad * out).sum(2, keepdim=True)
        slope = slope * weights * _scale(q)
        grad_q += _mix(slope, own_k)
        return grad_q, grad_k, grad_v, _spread(slope, q, own_k), _spread(weights, grad, own_v), None


def _by_group(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[m, heads, dim] -> [kv_heads, group, m, dim], a view; `like` [N, kv_heads, dim]."""
    return _grouped(x, like.shape[1]).permute(1, 2, 0, 3)


def _by_head(x: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """[n, kv_heads, dim] -> [kv_heads, group, n, dim], a view: the group's heads share their keys."""
    return x.transpose(0, 1)[:, None].expand(-1, queries.shape[1] // x.shape[1], -1, -1)


def _ungroup(x: torch.Tensor) -> torch.Tensor:
    return x.permute(2, 0, 1, 3).flatten(1, 2)


def _join(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor, *, begin: bool) -> None:
    """Join a part, [m, heads, dim] and [m, heads], into out and lse in place; begin: nothing is there yet."""
    if part.dim() == 4:
        part, part_lse = _ungroup(part), _ungroup(part_lse[..., None])[..., 0]
    if begin:
        out.copy_(part)
        lse.copy_(part_lse)
        return
    share = torch.sigmoid(part_lse - lse)[:, :, None]  # exp(part_lse) / (exp(part_lse) + exp(lse))
    out.lerp_(part, share.to(out.dtype))
    torch.logaddexp(lse, part_lse, out=lse)


def _scale(q: torch.Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])


def _has_kernel(q: torch.Tensor) -> bool:
    """Whether torch has a flash kernel that takes such numbers and tells the logsumexp as it is."""
    return q.device.type == "cpu"


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [batch, heads, m, dim] and its logsumexp [batch, heads, m]."""
    if _has_kernel(q):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse
    scores = _scores(q, k, causal)
    lse = scores.logsumexp(3)
    return torch.matmul((scores - lse[..., None]).exp().to(v.dtype), v), lse


def _flash_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, for keys that are a part of what `out` and `lse` are made of."""
    if _has_kernel(q):
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = backward(grad, q, k, v, out, lse, 0.0, causal)
        return dq, dk, dv
    weights = (_scores(q, k, causal) - lse[..., None]).exp()
    slope = (grad @ v.transpose(2, 3)).float() - (grad * out).sum(3, keepdim=True, dtype=torch.float32)
    slope = (weights * slope * _scale(q)).to(q.dtype)
    return slope @ k, slope.transpose(2, 3) @ q, weights.to(q.dtype).transpose(2, 3) @ grad


def _scores(q: torch.Tensor, k: torch.Tensor, causal: bool) -> torch.Tensor:
    """float32 [batch, heads, m, n]: the plain form, a span at a time, for devices without a kernel that tells lse."""
    scores = torch.matmul(q, k.transpose(2, 3)).float() * _scale(q)
    if causal:
        future = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def _own_scores(q: torch.Tensor, own_k: torch.Tensor) -> torch.Tensor:
    """q [M, heads, dim], own_k [M, j, kv_heads, dim] -> float32 [M, heads, j]."""
    return _products(q, own_k).float() * _scale(q)


def _products(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """x [M, heads, dim], own [M, j, kv_heads, dim] -> [M, heads, j]."""
    products: torch.Tensor = torch.matmul(_grouped(x, own.shape[2]), own.permute(0, 2, 3, 1))
    return products.flatten(1, 2)


def _mix(weights: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """weights [M, heads, j], own [M, j, kv_heads, dim] -> [M, heads, dim]."""
    mixed: torch.Tensor = torch.matmul(_grouped(weights.to(own.dtype), own.shape[2]), own.transpose(1, 2))
    return mixed.flatten(1, 2)


def _spread(weights: torch.Tensor, x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """sum over the group of weights [M, heads, j] · x [M, heads, dim] -> [M, j, kv_heads, dim]."""
    weights, x = _grouped(weights.to(own.dtype), own.shape[2]), _grouped(x, own.shape[2])
    return torch.matmul(weights.transpose(2, 3), x).transpose(1, 2)


def _grouped(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[M, heads, n] -> [M, kv_heads, group, n]."""
    return x.reshape(len(x), kv_heads, -1, x.shape[2])
