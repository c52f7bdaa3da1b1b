"""Rates, Muon and the running mean, held to their formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from slimtier.train.config import OptimisationPart
from slimtier.train.optimiser import Muon, RunningMean, make_optimisers, orthogonalised, rate, set_rate
from tests.train.networks import network


def test_the_rate_rises_and_falls() -> None:
    config = OptimisationPart(warmup=0.1, final_lr=0.2)
    rates = [rate(step, 100, config) for step in range(100)]
    assert rates[:10] == [pytest.approx(0.1 * step) for step in range(1, 11)]
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.6)
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert 0.2 < rates[-1] < 0.201
    assert rate(0, 1, OptimisationPart(warmup=0.0)) == 1.0


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (8, 8)])
def test_orthogonalised_has_even_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.linalg.svdvals(orthogonalised(matrix))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    cosine = (orthogonalised(matrix) * (u @ v)).sum() / (orthogonalised(matrix).norm() * (u @ v).norm())
    assert float(cosine) > 0.97


def test_muon_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(6, 10)) for _ in range(2))
    own = Muon([ours], lr=0.1, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        ours.grad = torch.randn(6, 10)
        theirs.grad = ours.grad.clone()
        own.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.01)  # it iterates in bfloat16


def test_muon_takes_the_matrices_of_the_body() -> None:
    net = network()
    adamw, muon = make_optimisers(net, OptimisationPart(optimiser="muon", lr=1e-3, muon_lr=1e-2))
    names = {id(weight): name for name, weight in net.named_parameters()}
    by_muon = {names[id(weight)] for group in muon.param_groups for weight in group["params"]}
    by_adamw = {names[id(weight)] for group in adamw.param_groups for weight in group["params"]}
    assert {"fc.weight", "head.down"} <= by_muon
    assert {"head.up", "norm.weight"} <= by_adamw
    assert by_muon | by_adamw == set(names.values())
    assert not by_muon & by_adamw
    set_rate((adamw, muon), 0.5)
    assert (adamw.param_groups[0]["lr"], muon.param_groups[0]["lr"]) == (5e-4, 5e-3)


def test_the_running_mean() -> None:
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
        mean = RunningMean(net, 0.9)
        net.weight.fill_(2.0)
        mean.update(net, step=1000)
        assert float(mean.weights["weight"]) == pytest.approx(1.1)
        mean.update(net, step=1)  # 2 / 11 of the old stays
        assert float(mean.weights["weight"]) == pytest.approx(1.1 * 2 / 11 + 2 * 9 / 11)
        kept = float(mean.weights["weight"])
        mean.swap(net)
        assert (float(net.weight), float(mean.weights["weight"])) == (pytest.approx(kept), 2.0)
        mean.swap(net)
        assert float(net.weight) == 2.0
