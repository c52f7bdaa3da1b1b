"""Training in bfloat16: where there are units for it, and with nearly the gradients of float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slimtier.train import autocast
from slimtier.train.autocast import multiplies_bfloat16
from slimtier.train.config import LossPart
from slimtier.train.gradients import Gradients, Unrolling
from slimtier.train.optimiser import orthogonalised
from slimtier.train.parallel import Ranks
from tests.train.networks import network, whole_batch

CPU = torch.device("cpu")


def has(monkeypatch: pytest.MonkeyPatch, **units: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)


def test_units_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for units, expected in (
        ({"avx2": True}, False),
        ({"avx512_bf16": False}, False),
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
    ):
        has(monkeypatch, **units)
        assert multiplies_bfloat16(CPU) == expected
        assert autocast.autocast(CPU, True)._enabled == expected
    assert not autocast.autocast(CPU, False)._enabled


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_nearly_those_of_float32(
    layers: int, tiny_capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch = network(layers=layers), whole_batch(tiny_capture)
    grads, losses = [], []
    for unit in (False, True):
        has(monkeypatch, avx512_bf16=unit)
        net.zero_grad()
        with autocast.autocast(CPU, True):
            losses.append(Gradients(net, LossPart(), Ranks()).add(batch, Unrolling(3, 0.8, 0.7), seed=4).loss)
        grads.append({name: weight.grad.clone() for name, weight in net.named_parameters() if weight.grad is not None})
    assert losses[0] != losses[1]  # it was in bfloat16
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[1].items():
        assert grad.dtype == torch.float32
        assert torch.cosine_similarity(grads[0][name].flatten(), grad.flatten(), dim=0) > 0.98, name


def test_muon_iterates_in_bfloat16_where_that_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(12, 30, generator=torch.Generator().manual_seed(0))
    has(monkeypatch, avx512_bf16=False)
    exact = orthogonalised(matrix)
    has(monkeypatch, avx512_bf16=True)
    assert torch.equal(orthogonalised(matrix, bf16=False), exact)
    rounded = orthogonalised(matrix)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert torch.cosine_similarity(rounded.flatten(), exact.flatten(), dim=0) > 0.99
