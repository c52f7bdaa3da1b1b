"""Draft heads against their naive twins: scores, argmax, the winner's probability, ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slimtier.kernels import core, pool
from tests.kernels.matrices import matrix

WIDTH, VOCAB = 40, 777
KINDS = ["f32", "f16", "bf16", "q8"]
NAMES = ["full", "slim", "trimmed", "routed"]
SEVERAL = [1, 2, 3, 7, 70]
NONE = float("-inf")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def build(name: str, kind: str, *, rank: int = 6, candidates: int = 50, seed: int = 0) -> tuple[Any, Any]:
    """A head, and its twin: hidden [m, WIDTH] to logits [m, VOCAB] in float64."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(VOCAB, WIDTH, generator=generator)
    factors = "f32" if name == "routed" else kind  # which rows are chosen may not depend on rounding
    down, stored_down = matrix(torch.randn(rank, WIDTH, generator=generator), factors)
    up, stored_up = matrix(torch.randn(VOCAB, rank, generator=generator), factors)
    exact, stored = matrix(rows, kind)
    if name == "full":
        return core.DraftHead.full(exact), lambda h: h.double() @ stored.double().T
    if name == "slim":
        return core.DraftHead.slim(down, up), lambda h: h.double() @ stored_down.double().T @ stored_up.double().T
    if name == "trimmed":
        ids = torch.randperm(VOCAB, generator=generator)[:300]
        few, stored_few = matrix(rows[ids], kind)
        head = core.DraftHead.trimmed(few, ids.int().numpy(), VOCAB)
        return head, lambda h: scattered(h.double() @ stored_few.double().T, ids.expand(len(h), -1))

    def routed(h: torch.Tensor) -> torch.Tensor:
        scores = h.double() @ stored_down.double().T @ stored_up.double().T
        chosen = scores.topk(min(candidates, VOCAB)).indices
        return scattered((h.double() @ stored.double().T).gather(1, chosen), chosen)

    return core.DraftHead.routed(down, up, exact, candidates), routed


def scattered(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.full((len(scores), VOCAB), NONE, dtype=scores.dtype).scatter(1, ids, scores)


def logits(head: Any, hidden: torch.Tensor, threads: int = 2) -> torch.Tensor:
    out = torch.full((len(hidden), head.vocab), 5.0)
    head.logits(pool(threads), hidden.numpy(), out.numpy())
    return out


def argmax(head: Any, hidden: torch.Tensor, threads: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m = len(hidden)
    ids, values, probabilities = torch.zeros(m, dtype=torch.int32), torch.zeros(m), torch.zeros(m)
    head.argmax(pool(threads), hidden.numpy(), ids.numpy(), values.numpy(), probabilities.numpy())
    return ids, values, probabilities


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_head_matches_its_twin(name, kind):
    head, twin = build(name, kind)
    for m in (0, *SEVERAL):
        hidden = torch.randn(m, WIDTH)
        out, expected = logits(head, hidden), twin(hidden)
        assert torch.equal(out.isneginf(), expected.isneginf())
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("name", NAMES)
def test_argmax_is_that_of_the_logits(name, kind):
    head, _ = build(name, kind)
    for m in SEVERAL:
        hidden = torch.randn(m, WIDTH)
        out = logits(head, hidden)
        ids, values, probabilities = argmax(head, hidden)
        best = out.max(dim=1)
        assert torch.equal(ids, best.indices.int())
        assert torch.equal(values, best.values)
        expected = out.double().softmax(1).amax(1)
        torch.testing.assert_close(probabilities.double(), expected, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_same_bits_in_any_company(name, kind):
    head, _ = build(name, kind)
    hidden = torch.randn(9, WIDTH)
    alone = [argmax(head, hidden[i : i + 1], threads=1) for i in range(9)]
    for threads in (1, 2, 3):
        for first, last in ((0, 9), (0, 2), (3, 8)):
            together = argmax(head, hidden[first:last], threads)
            for i in range(first, last):
                assert all(torch.equal(one[i - first], own[0]) for one, own in zip(together, alone[i], strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 6, 32, 33, 72])
def test_a_slim_head_of_any_rank(rank, kind):
    head, twin = build("slim", kind, rank=rank)
    assert head.nbytes < (VOCAB + 15 + rank + 15) * (rank + WIDTH + 8) * 4
    hidden = torch.randn(5, WIDTH)
    torch.testing.assert_close(logits(head, hidden).double(), twin(hidden), rtol=1e-4, atol=1e-2)


def test_a_large_first_factor_is_shared_out_and_gives_the_same_bits():
    down, _ = matrix(torch.randn(96, 800), "f32")
    up, _ = matrix(torch.randn(300, 96), "q8")
    head, hidden = core.DraftHead.slim(down, up), torch.randn(6, 800)
    middle = torch.empty(6, 96)
    down.linear(pool(1), hidden.numpy(), middle.numpy())
    expected = torch.empty(6, 300)
    up.linear(pool(1), middle.numpy(), expected.numpy())
    for m in (1, 6):
        assert torch.equal(logits(head, hidden[:m]), expected[:m])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", [1, 8, 97, 776, 777, 5000])
def test_a_routed_head_scores_as_many_rows_as_asked(candidates, kind):
    head, twin = build("routed", kind, candidates=candidates)
    hidden = torch.randn(4, WIDTH)
    out = logits(head, hidden)
    assert (out > NONE).sum(1).tolist() == [min(candidates, VOCAB)] * 4
    torch.testing.assert_close(out.double(), twin(hidden), rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_routed_head_over_all_rows_is_the_full_head(kind):
    """Rows that are read one by one go through the same operations as rows that are read in panels."""
    hidden = torch.randn(4, WIDTH)
    assert torch.equal(
        logits(build("routed", kind, candidates=VOCAB)[0], hidden), logits(build("full", kind)[0], hidden)
    )


@pytest.mark.parametrize(("bits", "group", "mins"), [(8, 32, True), (8, 16, False), (4, 32, True)])
def test_a_routed_head_takes_every_kind_of_codes(bits, group, mins):
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 16, (VOCAB, WIDTH)).astype(np.uint8)
    scales, lows = generator.random((2, VOCAB, -(-WIDTH // group)), dtype=np.float32)
    exact = core.Matrix.from_codes(codes, scales, lows if mins else None, group, bits)
    spread = [torch.from_numpy(f).repeat_interleave(group, dim=1)[:, :WIDTH] for f in (scales, lows)]
    stored = torch.from_numpy(codes).float() * spread[0] + (spread[1] if mins else 0.0)
    down, _ = matrix(torch.randn(3, WIDTH), "f32")
    up, _ = matrix(torch.randn(VOCAB, 3), "f32")
    hidden = torch.randn(3, WIDTH)
    out = logits(core.DraftHead.routed(down, up, exact, VOCAB), hidden)
    torch.testing.assert_close(out.double(), hidden.double() @ stored.double().T, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_lowest_target_id_wins_a_tie(name):
    weights, equal = torch.full((VOCAB, 1), -1.0), [700, 301, 37, 255, 256]
    weights[equal] = 1.0
    ids = np.random.default_rng(3).permutation(VOCAB).astype(np.int32)
    one, whole = core.Matrix.from_floats(np.ones((1, 1), np.float32)), core.Matrix.from_floats(weights.numpy())
    shuffled = core.Matrix.from_floats(weights.numpy()[ids])
    head = {
        "full": lambda: core.DraftHead.full(whole),
        "slim": lambda: core.DraftHead.slim(one, whole),
        "trimmed": lambda: core.DraftHead.trimmed(shuffled, ids, VOCAB),
        "routed": lambda: core.DraftHead.routed(one, whole, whole, 3),
    }[name]()
    for threads in (1, 3):
        assert argmax(head, torch.ones(2, 1), threads)[0].tolist() == [37, 37]
    out = logits(head, torch.ones(1, 1))[0]
    if name == "routed":  # the lower ids are the candidates, too
        assert (out > NONE).nonzero().flatten().tolist() == [37, 255, 256]
    everywhere = argmax(head, torch.zeros(1, 1))
    assert everywhere[0].tolist() == [0]
    assert everywhere[2].tolist() == [pytest.approx(1 / (3 if name == "routed" else VOCAB), rel=1e-6)]


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), NONE])
def test_what_is_not_finite_is_seen_in_its_own_row(name, kind, bad):
    head, _ = build(name, kind)
    hidden = torch.randn(3, WIDTH)
    clean = argmax(head, hidden)
    hidden[1, 39] = bad
    ids, values, probabilities = argmax(head, hidden)
    assert not values[1].isfinite()
    assert not logits(head, hidden)[1].amax().isfinite()
    for one, own in zip((ids, values, probabilities), clean, strict=True):
        assert torch.equal(one[[0, 2]], own[[0, 2]])


@pytest.mark.parametrize("name", ["full", "slim", "routed"])
def test_a_nan_among_the_weights_wins(name):
    weights = torch.randn(VOCAB, 2)
    weights[[444, 600], 1] = float("nan")
    clean = core.Matrix.from_floats(weights.nan_to_num().numpy())
    spoilt, one = core.Matrix.from_floats(weights.numpy()), core.Matrix.from_floats(np.eye(2, dtype=np.float32))
    head = {
        "full": lambda: core.DraftHead.full(spoilt),
        "slim": lambda: core.DraftHead.slim(one, spoilt),
        "routed": lambda: core.DraftHead.routed(one, spoilt, clean, 5),
    }[name]()
    ids, values, probabilities = argmax(head, torch.ones(2, 2))
    assert ids.tolist() == [444, 444]
    assert values.isnan().all()
    assert probabilities.isnan().all()
    assert logits(head, torch.ones(1, 2))[0, 444].isnan()


def test_candidates_among_scores_of_any_spread():
    """The selection's bins are even between the extremes: outliers, equals and huge scores must not mislead it."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(VOCAB, generator=generator)
    outlier, equals = spread.clone(), spread.round()
    outlier[5] = 1e30
    for scores in (spread, outlier, equals, torch.zeros(VOCAB), spread.abs() * 1e38, torch.arange(VOCAB).float()):
        one, column = (
            core.Matrix.from_floats(np.ones((1, 1), np.float32)),
            core.Matrix.from_floats(scores[:, None].numpy()),
        )
        for count in (1, 7, 100, 500):
            out = logits(core.DraftHead.routed(one, column, column, count), torch.ones(1, 1))[0]
            order = scores.sort(descending=True, stable=True).indices[:count]
            assert (out > NONE).nonzero().flatten().tolist() == order.sort().values.tolist()


def test_what_does_not_fit_is_refused():
    wide, tall = (
        core.Matrix.from_floats(np.ones((4, 8), np.float32)),
        core.Matrix.from_floats(np.ones((9, 4), np.float32)),
    )
    one, ids = np.ones((1, 8), np.float32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="do not fit each other"):
        core.DraftHead.slim(tall, wide)
    for bad in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 5], [0, 1, 2, -1]):
        with pytest.raises(ValueError, match="target id"):
            core.DraftHead.trimmed(wide, np.array(bad, np.int32), 5)
    with pytest.raises(ValueError, match="exact rows"):
        core.DraftHead.routed(wide, tall, wide, 2)
    with pytest.raises(ValueError, match="candidate"):
        core.DraftHead.routed(wide, tall, core.Matrix.from_floats(np.ones((9, 8), np.float32)), 0)
    head = core.DraftHead.full(wide)
    with pytest.raises(ValueError, match="hidden must be"):
        head.logits(pool(1), np.ones((1, 7), np.float32), np.ones((1, 4), np.float32))
    with pytest.raises(ValueError, match="must be"):
        head.argmax(pool(1), one, ids, np.ones(2, np.float32))
