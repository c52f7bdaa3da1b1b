"""Matrix kernels against their naive twins, and bit for bit against themselves at another T, thread count, offset."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimtier.kernels import core, naive, pool

SHAPES = [(1, 32), (1, 1), (5, 7), (8, 40), (17, 72), (33, 31), (96, 576), (50, 100), (16, 16), (257, 64)]
TOKENS = [0, 1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 33, 64]


def run(matrix, x, threads=2):
    out = torch.full((x.shape[0], matrix.n), float("nan"))
    matrix.linear(pool(threads), x.numpy(), out.numpy())
    return out


def coded(n, k, bits, group=32, mins=True, wide=False, seed=0):
    rng = np.random.default_rng(seed)
    groups = -(-k // group)
    low, high, kind = (0, 16, np.uint8) if bits == 4 else (-128, 128, np.int8)
    codes = rng.integers(low, high, (n, k)).astype(kind)
    scales = rng.random((n, groups), dtype=np.float32) + 0.5
    lows = rng.standard_normal((n, groups)).astype(np.float32)
    if not wide:
        scales, lows = scales.astype(np.float16).astype(np.float32), lows.astype(np.float16).astype(np.float32)
    matrix = core.Matrix.from_codes(codes.view(np.uint8), scales, lows if mins else None, group, bits)
    tensors = [torch.from_numpy(a) for a in (codes, scales, lows)]
    return matrix, tensors[0], tensors[1], tensors[2] if mins else None


def packed(make, n, k):
    """Random weights [n, k] of a float kind, or coded as `make` says."""
    return core.Matrix.from_floats(torch.randn(n, k).numpy(), make) if isinstance(make, str) else coded(n, k, *make)[0]


CODED = [(4, 32, True, False), (4, 32, True, True), (8, 32, False, False), (8, 32, True, True), (8, 16, False, True)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_float_weights_match_the_twin(n, k, kind):
    torch.manual_seed(n * 1000 + k)
    weights = torch.randn(n, k)
    stored = weights.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]).float()
    matrix = core.Matrix.from_floats(weights.numpy(), kind)
    for tokens in TOKENS:
        x = torch.randn(tokens, k)
        torch.testing.assert_close(run(matrix, x).double(), naive.linear(x, stored), rtol=1e-5, atol=2e-5 * k**0.5)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize(("bits", "group", "mins", "wide"), CODED)
def test_coded_weights_match_the_twin(n, k, bits, group, mins, wide):
    torch.manual_seed(n * 1000 + k)
    matrix, codes, scales, lows = coded(n, k, bits, group, mins, wide)
    for tokens in TOKENS:
        x = torch.randn(tokens, k)
        expected = naive.linear_codes(x, codes, scales, lows, group, bits)
        atol = 1e-4 * k**0.5 * (16 if bits == 8 else 1)
        torch.testing.assert_close(run(matrix, x).double(), expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("n", "k"), [*SHAPES, (24, 1024), (41, 1100), (16, 2080)])
@pytest.mark.parametrize(("bits", "group", "mins", "wide"), CODED)
def test_codes_in_floats_have_the_bits_of_float_weights(n, k, bits, group, mins, wide):
    torch.manual_seed(n * 1000 + k)
    codes, scales, lows = coded(n, k, bits, group, mins)[1:]
    if wide:  # as a file has them: a half times a small number
        scales = scales * torch.randint(1, 64, scales.shape)
        lows = lows if lows is None else lows * torch.randint(1, 64, lows.shape)
    given = scales.numpy(), None if lows is None else lows.numpy()
    matrix = core.Matrix.from_codes(codes.numpy().view(np.uint8), *given, group, bits)
    values = codes.float() * scales.repeat_interleave(group, dim=1)[:, :k]
    values = values if lows is None else values + lows.repeat_interleave(group, dim=1)[:, :k]
    dense, in_floats = core.Matrix.from_floats(values.numpy(), "f32"), matrix.in_floats()
    for tokens in TOKENS:
        x = torch.randn(tokens, k)
        assert torch.equal(run(in_floats, x), run(dense, x))
        assert torch.equal(run(in_floats.in_integers(), x), run(matrix, x))
    assert (in_floats.kind, in_floats.stored, in_floats.nbytes) == ("f32", matrix.kind, matrix.nbytes)
    assert in_floats.shares(matrix)
    assert not in_floats.shares(dense)


@pytest.mark.parametrize("make", ["f32", "f16", "bf16", *CODED, "q4 in floats", "q8 in floats"], ids=str)
def test_a_row_has_the_same_bits_whatever_its_company(make):
    n, k = 83, 200
    matrix = packed(CODED[make.startswith("q8") * 2], n, k).in_floats() if " in " in make else packed(make, n, k)
    x = torch.randn(64, k)
    alone = torch.cat([run(matrix, x[i : i + 1], threads=1) for i in range(64)])
    for tokens in (2, 3, 5, 6, 8, 16, 17, 31, 64):
        for first in range(0, 64 - tokens + 1, max(1, (64 - tokens) // 3)):
            for threads in (1, 2, 3):
                assert torch.equal(run(matrix, x[first : first + tokens], threads), alone[first : first + tokens])


@pytest.mark.parametrize("make", ["f32", (4, 32, True, False), (8, 32, False, False)], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(make, bad):
    n, k = 24, 72
    matrix = packed(make, n, k)
    x = torch.randn(3, k)
    clean = run(matrix, x)
    x[1, 70] = bad
    out = run(matrix, x)
    assert not out[1].isfinite().any()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("make", ["f32", (4, 32, True, False), (8, 32, False, False)], ids=str)
def test_memory_need_not_be_aligned(make):
    n, k = 40, 96
    matrix = packed(make, n, k)
    x = torch.randn(4, k)
    for offset in (1, 3, 5):
        shifted = np.empty(4 * k + offset, dtype=np.float32)[offset:].reshape(4, k)
        shifted[:] = x.numpy()
        out = np.empty(4 * n + offset, dtype=np.float32)[offset:].reshape(4, n)
        matrix.linear(pool(2), shifted, out)
        assert np.array_equal(out, run(matrix, x).numpy())


@pytest.mark.parametrize("make", ["f32", "bf16", *CODED], ids=str)
def test_a_row_can_be_read_back(make):
    n, k = 37, 72
    if isinstance(make, str):
        weights = torch.randn(n, k)
        matrix = core.Matrix.from_floats(weights.numpy(), make)
        expected = weights.bfloat16().float() if make == "bf16" else weights
    else:
        matrix, codes, scales, lows = coded(n, k, *make)
        spread = [None if f is None else f.repeat_interleave(make[1], dim=1)[:, :k] for f in (scales, lows)]
        expected = codes.float() * spread[0] + (0.0 if spread[1] is None else spread[1])
    for row in (0, 15, 16, 36):
        out = np.empty(k, dtype=np.float32)
        matrix.row(row, out)
        assert np.array_equal(out, expected[row].numpy())


def test_extreme_codes_do_not_saturate():
    """All weights and activations at their limits: the largest sums the integer paths can meet."""
    for bits, high in ((4, 15), (8, -128)):
        codes = np.full((8, 64), high, dtype=np.uint8 if bits == 4 else np.int8)
        ones, none = np.ones((8, 2), dtype=np.float32), np.zeros((8, 2), dtype=np.float32)
        matrix = core.Matrix.from_codes(codes.view(np.uint8), ones, none, 32, bits)
        for sign in (1.0, -1.0):
            assert run(matrix, torch.full((1, 64), sign)).tolist() == [[pytest.approx(64 * high * sign, rel=1e-6)] * 8]
