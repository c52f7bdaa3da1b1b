"""What is made small, held to the formulas written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from slimtier.errors import ConfigError
from slimtier.route import objective
from slimtier.route.objective import Divergence, check_thresholds, cost, divergences, kl, mismatch, total_variation


def rows(seed: int, count: int = 20, size: int = 11, scale: float = 2.0) -> torch.Tensor:
    return (scale * torch.randn(count, size, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def naive_cost(q: list[float], slim: list[float], alpha: float, beta: float) -> float:
    first = sum(s * max(0.0, math.log(1 - alpha) + math.log(s) - math.log(t)) for t, s in zip(q, slim, strict=True))
    second = sum(t * max(0.0, math.log(beta) + math.log(s) - math.log(t)) for t, s in zip(q, slim, strict=True))
    return first + second


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.5, 0.3), (0.0, 1.0), (0.2, 0.9)])
def test_cost_is_the_papers_formula(alpha: float, beta: float) -> None:
    target, slim = rows(0), rows(1)
    expected = [naive_cost(t, s, alpha, beta) for t, s in zip(target.exp().tolist(), slim.exp().tolist(), strict=True)]
    assert cost(target, slim, alpha, beta).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_cost_by_hand() -> None:
    """q = (.8, .2), q' = (.2, .8): only the second token is overrated, four times; log(.5 · 4) = log 2."""
    target, slim = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.2, 0.8]]).log()
    assert float(cost(target, slim)) == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(2))
    assert float(kl(target, slim)) == pytest.approx(0.8 * math.log(4) - 0.2 * math.log(4))
    assert float(total_variation(target, slim)) == pytest.approx(0.6)
    assert float(mismatch(target, slim)) == 1.0


def test_the_others_are_their_formulas() -> None:
    target, slim = rows(2), rows(3)
    pairs = list(zip(target.exp().tolist(), slim.exp().tolist(), strict=True))
    naive_kl = [sum(t * math.log(t / s) for t, s in zip(*pair, strict=True)) for pair in pairs]
    naive_tv = [sum(abs(t - s) for t, s in zip(*pair, strict=True)) / 2 for pair in pairs]
    naive_mismatch = [float(t.index(max(t)) != s.index(max(s))) for t, s in pairs]
    assert kl(target, slim).tolist() == pytest.approx(naive_kl, rel=1e-4)
    assert total_variation(target, slim).tolist() == pytest.approx(naive_tv, rel=1e-4)
    assert mismatch(target, slim).tolist() == naive_mismatch


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_all_at_once_is_each_alone(count: int) -> None:
    target, slim = rows(4, count), rows(5, count)
    before = target.clone(), slim.clone()
    together = divergences(target, slim, 0.4, 0.3)
    alone = cost(target, slim, 0.4, 0.3), kl(target, slim), total_variation(target, slim), mismatch(target, slim)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert torch.equal(target, before[0])
    assert torch.equal(slim, before[1])


def test_equal_distributions_are_at_no_distance() -> None:
    for values in divergences(rows(6), rows(6)):
        assert values.abs().max() < 1e-6


def test_a_slim_verifier_that_is_never_twice_as_sure_costs_nothing() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2]]).log()
    slim = torch.tensor([[0.3, 0.4, 0.3]]).log()
    assert float(cost(target, slim)) == 0.0
    assert float(kl(target, slim)) > 0.0


def test_means_are_over_positions_not_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "_FEW", 3)
    target, slim = rows(7, 10), rows(8, 10)
    parts = [divergences(target[:7], slim[:7]), divergences(target[7:], slim[7:])]
    whole = Divergence.mean([divergences(target, slim)])
    assert list(Divergence.mean(parts).to_dict().values()) == pytest.approx(list(whole.to_dict().values()))


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.5), (-0.1, 0.5), (0.5, 0.0), (0.5, 1.1)])
def test_thresholds_without_a_logarithm_are_refused(alpha: float, beta: float) -> None:
    with pytest.raises(ConfigError, match="alpha" if beta == 0.5 else "beta"):
        check_thresholds(alpha, beta)
