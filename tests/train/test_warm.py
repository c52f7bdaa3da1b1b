"""What a draft starts from: solved in the least-squares sense, or taken over exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from slimtier.drafters.eagle.network import Layer
from slimtier.errors import ConfigError
from slimtier.models.native import open_weights
from slimtier.models.resolve import resolve
from slimtier.train.begin import begin, open_target, plain_state
from slimtier.train.config import LossPart, read_config
from slimtier.train.fitting import soften
from slimtier.train.gradients import Gradients
from slimtier.train.own_token import start_own_token
from slimtier.train.parallel import Ranks
from slimtier.train.shards import open_capture
from slimtier.train.unroll import unroll
from slimtier.train.warm import ScaledLinear, Statistics, low_rank, ridge, start_body, start_head
from tests.train.captures import HIDDEN, STREAMS, VOCAB
from tests.train.networks import network, whole_batch

COUNT = 4000
ONES = torch.ones(VOCAB, dtype=torch.float64)


def drawn() -> tuple[torch.Tensor, torch.Tensor, Statistics]:
    """Inputs [COUNT, D], states [COUNT, hidden] that depend on them, and their normal equations."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-1, 1, (1 + STREAMS) * HIDDEN, dtype=torch.float64)
    x = torch.randn(COUNT, len(scales), generator=generator, dtype=torch.float64) * scales
    mix = torch.randn(len(scales), HIDDEN, generator=generator, dtype=torch.float64) / scales[:, None]
    y = x @ mix + torch.randn(COUNT, HIDDEN, generator=generator, dtype=torch.float64)
    return x, y, Statistics(x.T @ x, x.T @ y, y.T @ y, COUNT)


def test_fc_is_the_least_squares_map_from_the_streams() -> None:
    x, y, statistics = drawn()
    solved = torch.linalg.lstsq(x[:, HIDDEN:], y).solution.T.float()
    torch.testing.assert_close(ridge(statistics, 0.0, with_token=False), solved, atol=1e-4, rtol=1e-3)
    assert float(ridge(statistics, 10.0, with_token=False).norm()) < float(solved.norm())


@pytest.mark.parametrize("penalty", [0.0, 1e-3])
def test_the_body_begins_with_what_was_solved(penalty: float, tiny_target: Path) -> None:
    x, y, statistics = drawn()
    net = network()
    config = read_config(None, [f"init.ridge={penalty}", "init.layer=random"])
    start_body(net, config.init, open_weights(resolve(str(tiny_target))), statistics, ONES)
    out = net.fuse(x[:50, HIDDEN:].float()) * net.norm.weight
    wanted = x[:50, HIDDEN:].float() @ ridge(statistics, penalty, with_token=False).T
    torch.testing.assert_close(out, wanted, atol=1e-3, rtol=1e-3)
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    assert not layer.o_proj.weight.any()
    assert not layer.down_proj.weight.any()
    torch.testing.assert_close(net.norm.weight, (y.square().mean(0)).sqrt().float(), atol=1e-4, rtol=1e-4)


def error(head: torch.Tensor, product: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> float:
    """Mean over y of the tokens' weighted squared errors, what their logits have in common left out."""
    difference = (product - head).double() @ y.T
    difference = difference - weights @ difference
    return float((weights @ difference.square()).mean())


@pytest.mark.parametrize("weighted", [False, True])
def test_low_rank_has_the_least_error_of_its_rank(weighted: bool) -> None:
    _, y, statistics = drawn()
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(VOCAB, HIDDEN, generator=generator) + 3
    frequencies = torch.rand(VOCAB, generator=generator, dtype=torch.float64) ** 4
    weights = (
        0.1 / VOCAB + 0.9 * frequencies / frequencies.sum() if weighted else torch.full_like(frequencies, 1 / VOCAB)
    )
    down, up = low_rank(head, 6, statistics.yty / COUNT, frequencies if weighted else None)
    assert (down.shape, up.shape) == ((6, HIDDEN), (VOCAB, 6))
    least = error(head, up @ down, y, weights)
    # the least that any rank has (Eckart and Young), from the singular values of the weighted matrix itself
    centred = head.double() - weights @ head.double()
    values, vectors = torch.linalg.eigh(statistics.yty / COUNT)
    matrix = weights.sqrt()[:, None] * centred @ (vectors * values.sqrt())
    assert least == pytest.approx(float(torch.linalg.svdvals(matrix)[6:].square().sum()), rel=1e-4)
    torch.testing.assert_close(
        (y @ down.double().T).square().mean(0), torch.ones(6, dtype=torch.float64), atol=1e-3, rtol=0
    )
    plain = low_rank(head, 6, None, None)
    assert error(head, plain[1] @ plain[0], y, weights) > 1.01 * least


def test_full_rank_gives_the_head_but_for_a_common_term() -> None:
    head = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
    down, up = low_rank(head, HIDDEN, None, None)
    torch.testing.assert_close(up @ down, head - head.mean(0), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["full", "slim", "trimmed", "routed"])
def test_heads_start_from_the_targets(kind: str) -> None:
    _, _, statistics = drawn()
    net = network(kind)
    head = torch.randn(VOCAB, HIDDEN)
    ids = torch.arange(0, VOCAB, 2)[:40] if kind != "trimmed" else torch.arange(24, 64)
    start_head(net, "activation-svd", head, statistics.yty / COUNT, ONES, ids)
    hidden = torch.randn(3, HIDDEN)
    logits = net.head.logits(hidden)  # type: ignore[operator]
    if kind in ("full", "trimmed"):
        seen = logits > -torch.inf
        torch.testing.assert_close(logits[seen], (hidden @ head.T)[seen])
        assert seen[0].nonzero()[:, 0].tolist() == (ids.tolist() if kind == "trimmed" else list(range(VOCAB)))
    if kind == "routed":
        torch.testing.assert_close(net.head.weight.detach(), head)
        assert net.head.router.up.norm() > 0  # type: ignore[union-attr, operator]


def test_a_layer_of_the_target_reads_the_feature(tiny_target: Path) -> None:
    _, _, statistics = drawn()
    net, target = network(), open_weights(resolve(str(tiny_target)))
    start_body(net, read_config(None, ["init.layer=2"]).init, target, statistics, ONES)
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    stored = torch.from_numpy(target.tensors["model.layers.2.self_attn.k_proj.weight"].dense())
    x = torch.randn(5, HIDDEN)
    torch.testing.assert_close(layer.k_proj(torch.cat((torch.randn(5, HIDDEN), x), 1)), x @ stored.T)
    assert layer.down_proj.weight.any()
    with pytest.raises(ConfigError, match=r"init.layer is 9: the target's layers are 0 to 3"):
        start_body(net, read_config(None, ["init.layer=9"]).init, target, statistics, ONES)


def test_a_scaled_layer_is_the_same_map() -> None:
    plain = nn.Linear(6, 4, bias=False)
    scaled = ScaledLinear(plain, torch.tensor([100.0, 1, 1, 1, 0.01, 1]))
    x = torch.randn(3, 6)
    torch.testing.assert_close(scaled(x), plain(x))
    torch.testing.assert_close(scaled.folded(), plain.weight.detach())


def test_the_network_that_is_trained_is_saved_as_a_plain_one(tiny_capture: Path, tiny_target: Path) -> None:
    capture = open_capture(tiny_capture)
    target = open_target(str(tiny_target), capture.info)
    net = begin(target, capture, capture.rows, read_config(None, ["drafter.rank=4"]), None)
    assert isinstance(net.fc, ScaledLinear)
    plain = network()
    plain.load_state_dict(plain_state(net))
    features = capture.read(capture.rows[0]).features.float()
    torch.testing.assert_close(plain.fuse(features), net.fuse(features), atol=1e-5, rtol=1e-4)


def test_softening_takes_the_least_loss(tiny_capture: Path) -> None:
    net, batch = network("full"), whole_batch(tiny_capture)
    gradients = Gradients(net, LossPart(), Ranks())
    with torch.no_grad():
        net.norm.weight.mul_(8)  # far too sure of itself
        before = gradients.loss_of(batch)
        soften(net, batch, LossPart())
        weight, after = net.norm.weight.clone(), gradients.loss_of(batch)
        assert after < before
        for factor in (1 / 1.2, 1.2):
            net.norm.weight.copy_(weight * factor)
            assert gradients.loss_of(batch) >= after or factor < 1  # the scales end where the norm is a quarter of it


def test_a_head_looks_at_its_own_position_and_passes_the_token(tiny_capture: Path) -> None:
    net, batch = network(), whole_batch(tiny_capture)
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    passed = torch.randn(HIDDEN, 6) @ torch.randn(6, HIDDEN) * 0.1  # of a rank that one head has room for
    embedding = net.embedding + 2 * torch.randn(HIDDEN)  # as of a language model: they have a direction in common
    frequencies = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)
    with torch.no_grad():
        net.embedding.copy_(embedding)
        layer.o_proj.weight.zero_()
        layer.down_proj.weight.zero_()
        layer.input_layernorm.weight.fill_(1.0)
        silent = net.fuse(batch.features[batch.slots].float())
        start_own_token(layer, embedding, frequencies, passed)
        net.norm.weight.fill_(1.0)
        (output,) = unroll(net, batch, 1)
        token = torch.nn.functional.rms_norm(embedding[batch.text[batch.key_text[batch.slots]]], (HIDDEN,))
        wanted = net.norm(silent + token @ passed.T)
        away = (output.hidden - wanted).norm() / (wanted - net.norm(silent)).norm()
    assert float(away) < 0.3
