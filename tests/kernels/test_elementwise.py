"""Row-wise kernels and attention against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimtier.kernels import core, naive, pool

WIDTHS = [1, 7, 8, 9, 64, 100, 576]


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width):
    torch.manual_seed(width)
    x, weight = torch.randn(3, width), torch.randn(width)
    out = torch.empty_like(x)
    core.rms_norm(x.numpy(), weight.numpy(), 1e-5, out.numpy())
    torch.testing.assert_close(out, naive.rms_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_act_mul(width, gelu):
    torch.manual_seed(width)
    gate, up, out = torch.randn(width) * 20, torch.randn(width), torch.empty(width)
    core.act_mul(gate.numpy(), up.numpy(), gelu, out.numpy())
    torch.testing.assert_close(out, naive.act_mul(gate, up, gelu), rtol=1e-5, atol=2e-6)


def test_act_mul_at_the_ends():
    gate = torch.tensor([0.0, -0.0, 1e30, -1e30, 100.0, -100.0, float("inf"), float("nan")])
    for gelu in (False, True):
        out = torch.empty(8)
        core.act_mul(gate.numpy(), torch.ones(8).numpy(), gelu, out.numpy())
        torch.testing.assert_close(out[:6], naive.act_mul(gate, torch.ones(8), gelu)[:6], rtol=1e-5, atol=1e-5)
        assert out[7].isnan()


@pytest.mark.parametrize("head_dim", [2, 6, 16, 64, 80, 256])
def test_rope(head_dim):
    torch.manual_seed(head_dim)
    x, angle = torch.randn(3, head_dim), torch.rand(head_dim // 2) * 6
    expected = naive.rope(x, angle.cos(), angle.sin()) * 0.5
    core.rope(x.numpy(), angle.cos().numpy(), angle.sin().numpy(), 0.5)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 8, 29])
def test_softcap(count):
    x = torch.linspace(-300, 300, count)
    expected = naive.softcap(x, 30.0)
    core.softcap(x.numpy(), 30.0)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-5)


def attend(q, k, v, start, chunk, *, window=0, cap=0.0, half=False, threads=2):
    out = torch.empty_like(q)
    arrays = [np.ascontiguousarray(a.numpy()) for a in (q, k, v)]
    core.attention(pool(threads), *arrays, start, chunk, window, cap, half, out.numpy())
    return out


CASES = [
    pytest.param(1, 4, 4, 8, 0, 0.0, id="one-token"),
    pytest.param(70, 6, 2, 64, 0, 0.0, id="two-blocks"),
    pytest.param(150, 4, 1, 20, 0, 0.0, id="odd-head"),
    pytest.param(130, 5, 1, 72, 0, 0.0, id="group-of-five"),
    pytest.param(130, 7, 1, 12, 70, 0.0, id="group-of-seven"),
    pytest.param(200, 3, 3, 36, 16, 0.0, id="window"),
    pytest.param(260, 8, 2, 32, 100, 50.0, id="window-softcap"),
]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "dim", "window", "cap"), CASES)
def test_attention(tokens, heads, kv_heads, dim, window, cap, half):
    torch.manual_seed(tokens)
    q = torch.randn(tokens, heads, dim) * dim**-0.5
    k, v = torch.randn(tokens, kv_heads, dim), torch.randn(tokens, kv_heads, dim)
    stored = [a.half().float() if half else a for a in (k, v)]
    expected = naive.attention(q, *stored, 0, window=window, cap=cap)
    whole = attend(q, k, v, 0, tokens, window=window, cap=cap, half=half)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5 if cap else 2e-6)
    for chunk in (1, 2, 5, 16, 17, 40):
        for threads in (1, 3):
            part = attend(q, k, v, 0, chunk, window=window, cap=cap, half=half, threads=threads)
            assert torch.equal(part, whole), f"chunk {chunk} with {threads} threads gives other bits"


def test_attention_ignores_what_lies_past_the_row():
    """A crop leaves rejected keys behind: NaN there must not be seen."""
    torch.manual_seed(0)
    q, k, v = torch.randn(10, 2, 16), torch.randn(20, 2, 16), torch.randn(20, 2, 16)
    clean = attend(q, k, v, 0, 3)
    k[10:], v[10:] = float("nan"), float("nan")
    assert torch.equal(attend(q, k, v, 0, 3), clean)


@pytest.mark.parametrize("window", [0, 3])
def test_attention_of_a_draft_does_not_see_its_other_tokens(window):
    """Queries computed together see different keys; what one may not see must not reach it, not even as 0 · ∞."""
    torch.manual_seed(1)
    q, k, v = torch.randn(80, 2, 16), torch.randn(80, 1, 16), torch.randn(80, 1, 16)
    clean = attend(q, k, v, 0, 16, window=window)
    v[71] = float("inf")  # neither the first nor the last of the tokens that are computed with its own
    out = attend(q, k, v, 0, 16, window=window)
    hidden = list(range(71)) + (list(range(71 + window, 80)) if window else [])
    assert torch.equal(out[hidden], clean[hidden])
    assert not out[71].isfinite().any()


def test_attention_shows_a_nan_it_must_see():
    q, k, v = torch.randn(4, 2, 16), torch.randn(4, 2, 16), torch.randn(4, 2, 16)
    k[2, 0, 3] = float("nan")
    out = attend(q, k, v, 0, 4)
    assert out[:2].isfinite().all()
    assert out[2:, 0].isnan().all()
