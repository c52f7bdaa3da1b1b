"""Attention over spans and chains is attention under an explicit mask, in value and in gradient."""

from __future__ import annotations

import pytest
import torch

from slimtier.train import attention
from slimtier.train.attention import Chain, Span, attend

HEADS, KV_HEADS, DIM = 4, 2, 8
# two rows of keys, 0 ... 10 and 11 ... 17; the second query run of the first row comes after a gap
KEYS = 18
SPANS = (Span(0, 3, 0, 0), Span(3, 7, 0, 6), Span(7, 12, 11, 13))
QUERIES = 12


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: tuple[Span, ...], chain: Chain | None
) -> torch.Tensor:
    """One softmax a query over the keys that it sees, and its own chain."""
    rows = []
    for span in spans:
        for index in range(span.stop - span.first):
            query = span.first + index
            seen = slice(span.key_row, span.key_first + index + 1)
            keys, values = k[seen], v[seen]
            if chain is not None:
                keys = torch.cat((keys, chain.keys[query]))
                values = torch.cat((values, chain.values[query]))
            keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
            weights = (torch.einsum("hd,nhd->hn", q[query], keys) * DIM**-0.5).softmax(1)
            rows.append(torch.einsum("hn,nhd->hd", weights, values))
    return torch.stack(rows)


def tensors(chained: int) -> list[torch.Tensor]:
    torch.manual_seed(chained)
    shapes = [(QUERIES, HEADS, DIM), (KEYS, KV_HEADS, DIM), (KEYS, KV_HEADS, DIM)]
    shapes += [(QUERIES, chained, KV_HEADS, DIM)] * 2 if chained else []
    return [(torch.randn(shape) * 1.5).requires_grad_() for shape in shapes]


def run(function: object, made: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and every gradient of a sum that weighs its elements differently."""
    q, k, v, *own = made
    chain = Chain(own[0], own[1]) if own else None
    out = function(q, k, v, SPANS, chain)  # type: ignore[operator]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    return [out, *torch.autograd.grad((out * weights).sum(), made)]


@pytest.mark.parametrize("chained", [0, 1, 3])
@pytest.mark.parametrize("plain", [False, True], ids=["kernel", "plain parts"])
def test_equals_one_softmax(chained: int, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:  # what devices other than a CPU run
        monkeypatch.setattr(attention, "_has_kernel", lambda q: False)
    made = tensors(chained)
    for got, wanted in zip(run(attend, made), run(naive, made), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def test_no_weight_on_a_later_key() -> None:
    q, k, v = tensors(0)
    with torch.no_grad():
        before = attend(q, k, v, SPANS)
        k[5] += 100  # in the first row's gap, after its first three queries and before the others
        after = attend(q, k, v, SPANS)
    torch.testing.assert_close(after[:3], before[:3], atol=0, rtol=0)
    torch.testing.assert_close(after[7:], before[7:], atol=0, rtol=0)
    assert not torch.allclose(after[3:7], before[3:7])
