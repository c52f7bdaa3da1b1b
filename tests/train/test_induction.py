"""A head that points at where the text went on from the same words, and copies what came then."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from slimtier.drafters.eagle.config import EagleConfig, HeadConfig
from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.models.config import RopeConfig
from slimtier.train.batches import load
from slimtier.train.config import LossPart
from slimtier.train.induction import has_room, slow_pairs, start_induction
from slimtier.train.pointer import Pointer, _inputs
from slimtier.train.shards import Row, RowPlace
from slimtier.train.unroll import unroll
from tests.train.captures import HIDDEN, STREAMS, VOCAB
from tests.train.networks import network

PIECE = 12  # tokens that a row says twice


@dataclass
class Echoes:
    """Rows that say a random piece twice; a position's features tell its token, as a residual stream does."""

    rows: list[Row]

    def read(self, place: RowPlace) -> Row:
        return self.rows[place.shard]


def echoes(count: int = 64) -> tuple[Echoes, list[RowPlace]]:
    generator = torch.Generator().manual_seed(5)
    code = torch.randn(VOCAB, STREAMS * HIDDEN, generator=generator)
    rows, places = [], []
    for index in range(count):
        piece = torch.randperm(VOCAB - 1, generator=generator)[:PIECE] + 1
        text = torch.cat((torch.zeros(1, dtype=torch.int64), piece, piece))
        features = code[text] + 0.1 * torch.randn(len(text), STREAMS * HIDDEN, generator=generator)
        others = torch.stack([torch.randperm(VOCAB, generator=generator)[:8] for _ in text])
        top_ids = torch.where(others == text[:, None], (others + 1) % VOCAB, others)
        top_ids[:, 0] = text
        logprobs = torch.tensor([0.9, *[0.01] * 7]).log().expand(len(text), -1)
        segments = ((PIECE + 1, len(text)),)
        rows.append(Row(text, features.half(), top_ids[PIECE + 1 :], logprobs[PIECE + 1 :], segments))
        places.append(RowPlace(index, 0, len(text), 0, segments, index))
    return Echoes(rows), places


def ignorant(head: HeadConfig) -> EagleNetwork:
    """A drafter whose layer adds nothing yet, with room in its heads."""
    torch.manual_seed(3)
    config = replace(network().config, head=head, head_dim=32, rope=RopeConfig(theta=1e6))
    net = EagleNetwork(config, torch.randn(VOCAB, HIDDEN), 128)
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    with torch.no_grad():
        for weight in net.head.parameters():
            nn.init.normal_(weight, std=0.3)
        layer.o_proj.weight.zero_()
        layer.down_proj.weight.zero_()
    return net


@torch.no_grad()
def right(net: EagleNetwork, capture: Echoes, places: list[RowPlace]) -> float:
    """How often the draft's first choice is the target's, where the text has been there before."""
    batch = load(capture, places)  # type: ignore[arg-type]
    (output,) = unroll(net, batch, 1)
    chosen = net.head.scores(output.hidden, None).argmax(1)  # type: ignore[operator]
    before = batch.num_labels[output.slots] < PIECE  # the first token of the echo has nothing to point at
    return float((chosen == batch.top_ids[output.labels, 0])[before].float().mean())


@pytest.mark.parametrize("head", [HeadConfig("full", VOCAB), HeadConfig("slim", VOCAB, rank=24)])
def test_an_echo_is_foretold(head: HeadConfig) -> None:
    capture, places = echoes()
    net = ignorant(head)
    learned, held_out = places[:48], places[48:]
    assert right(net, capture, held_out) < 0.2
    frequencies = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)
    start_induction(net, capture, learned, frequencies, LossPart(), 150, 0)  # type: ignore[arg-type]
    assert right(net, capture, held_out) > 0.3  # by chance 0.02


def test_without_steps_it_is_what_was_solved() -> None:
    capture, places = echoes()
    net = ignorant(HeadConfig("full", VOCAB))
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    frequencies = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)
    start_induction(net, capture, places, frequencies, LossPart(), 0, 0)  # type: ignore[arg-type]
    dim, size = net.config.head_dim, net.config.head_dim * net.config.num_heads // net.config.num_kv_heads
    for name, weight in net.state_dict().items():
        part = name.rsplit(".", 2)[-2]
        kept = before[name]
        if part == "q_proj":
            assert not torch.equal(weight[size:], kept[size:])
            weight, kept = weight[:size], kept[:size]
        elif part in ("k_proj", "v_proj"):
            assert not torch.equal(weight[dim:], kept[dim:])
            weight, kept = weight[:dim], kept[:dim]
        elif part == "o_proj":
            assert not torch.equal(weight[:, size:], kept[:, size:])
            weight, kept = weight[:, :size], kept[:, :size]
        assert torch.equal(weight, kept), name


def test_the_pointer_attends_as_the_layer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, places = echoes(2)
    net, batch = network(), load(capture, places)  # type: ignore[arg-type]
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    pointer = Pointer(layer, torch.Generator().manual_seed(0))
    dim, size = pointer.dim, pointer.group * pointer.dim
    with torch.no_grad():
        layer.q_proj.weight[size : 2 * size] = pointer.query
        inputs = _inputs(net, batch)
        seen: list[torch.Tensor] = []
        for segment in batch.segments:
            keys = slice(segment.key_row, segment.key_stop)
            weights = pointer.weights(net, inputs, batch, segment)
            seen.append(weights @ layer.v_proj(inputs[keys])[:, dim : 2 * dim])
            assert not weights.triu(weights.shape[1] - weights.shape[0] + 1).any()
        attended: list[torch.Tensor] = []

        def finish(residual: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            attended.append(out)
            return residual

        monkeypatch.setattr(layer, "finish", finish)
        unroll(net, batch, 1)
    own = attended[0][:, pointer.group : 2 * pointer.group].mean(1)
    torch.testing.assert_close(own, torch.cat(seen), atol=1e-4, rtol=1e-4)


def test_room_and_slow_dimensions() -> None:
    config: EagleConfig = network().config
    assert has_room(config)
    assert not has_room(replace(config, num_kv_heads=1))
    assert len(slow_pairs(network())) == 4  # of four: at least as many
