"""The training-time test, held to plain sequential drafting: for each slot a chain of its own, with a cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slimtier.drafters.eagle.config import NormConfig
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.train.batches import Batch
from slimtier.train.shards import open_capture
from slimtier.train.unroll import unroll
from tests.train.captures import HEADS, HIDDEN, KV_HEADS, Recipe, write_capture
from tests.train.networks import network, whole_batch

STEPS = 4
ROWS = [[(3, 5), (2, 4)], [(1, 6)], [(5, 1), (3, 2)]]  # an answer from the second token on; one of a single token


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("capture"), Recipe(ROWS))


@pytest.fixture(scope="module")
def batch(capture: Path) -> Batch:
    return whole_batch(capture)


def chain(net: EagleNetwork, tokens: torch.Tensor, features: torch.Tensor, slot: int, steps: int) -> list[torch.Tensor]:
    """The hidden states of `steps` draft steps from slot `slot`: the prefix is read, then one token at a time with the
    state fed back, as a drafter decodes. tokens [L] int64, features [L, streams · hidden]."""
    caches: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in net.layers]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        start = sum(len(keys) for keys, _ in caches[layer])
        caches[layer].append((k, v))
        keys, values = (torch.cat(parts) for parts in zip(*caches[layer], strict=True))
        keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
        seen = torch.ones(len(q), len(keys), dtype=torch.bool).tril(start)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * q.shape[2] ** -0.5
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(2), values)

    at = torch.arange(slot + 1)
    hidden, state = net(tokens[at + 1], net.fuse(features[at].float()), at, attend)
    found = [hidden[-1]]
    for step in range(1, steps):
        place = torch.tensor([slot + step])
        hidden, state = net(tokens[place + 1], state[-1:], place, attend)
        found.append(hidden[-1])
    return found


def wanted(net: EagleNetwork, capture: Path) -> list[dict[int, torch.Tensor]]:
    """For each draft step: slot of the batch -> hidden, of every slot whose answer is not over."""
    opened = open_capture(capture)
    steps: list[dict[int, torch.Tensor]] = [{} for _ in range(STEPS)]
    count = 0
    for place in opened.rows:
        row = opened.read(place)
        for first, stop in row.segments:
            for slot in range(max(first, 2) - 2, stop - 2):
                own = chain(net, row.token_ids, row.features, slot, min(STEPS, stop - 2 - slot))
                for step, hidden in enumerate(own):
                    steps[step][count] = hidden
                count += 1
    return steps


NORMS = [NormConfig(), NormConfig(before_residual=True, output=True), NormConfig(before_fc=True), NormConfig(fc=True)]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("norms", NORMS, ids=str)
def test_equals_sequential_drafting(layers: int, norms: NormConfig, capture: Path, batch: Batch) -> None:
    net = network(layers=layers, norms=norms)
    outputs = unroll(net, batch, STEPS)
    expected = wanted(net, capture)
    assert len(outputs) == STEPS
    for output, own in zip(outputs, expected, strict=True):
        assert output.slots.tolist() == sorted(own)
        rows = torch.stack([own[slot] for slot in output.slots.tolist()])
        torch.testing.assert_close(output.hidden, rows, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_equal_sequential_drafting(layers: int, capture: Path, batch: Batch) -> None:
    net = network(layers=layers)
    weights = torch.randn(STEPS, len(batch.slots), HIDDEN, generator=torch.Generator().manual_seed(5))
    fast = sum((o.hidden * weights[k, o.slots]).sum() for k, o in enumerate(unroll(net, batch, STEPS)))
    slow = sum((h * weights[k, slot]).sum() for k, own in enumerate(wanted(net, capture)) for slot, h in own.items())
    body = [weight for name, weight in net.named_parameters() if not name.startswith("head.")]
    assert isinstance(fast, torch.Tensor)
    assert isinstance(slow, torch.Tensor)
    for got, true in zip(torch.autograd.grad(fast, body), torch.autograd.grad(slow, body), strict=True):
        torch.testing.assert_close(got, true, atol=2e-5 * float(true.abs().max()), rtol=1e-3)


def test_labels_are_what_the_target_said_of_the_token_after_the_next(capture: Path, batch: Batch) -> None:
    opened = open_capture(capture)
    text = torch.cat([opened.read(place).token_ids for place in opened.rows])
    for step, output in enumerate(unroll(network(), batch, STEPS)):
        read = batch.key_text[batch.slots[output.slots]] + step  # the token that the step reads
        assert batch.top_ids[output.labels, 0].tolist() == text[read + 1].tolist()


def test_a_window_goes_on_and_each_seed_has_its_own(batch: Batch) -> None:
    net = network()
    whole, part = unroll(net, batch, 3), unroll(net, batch, 3, share=0.5, seed=1)
    assert part[0].slots.tolist() == whole[0].slots.tolist()
    later = part[1].slots.tolist()
    assert 0 < len(later) < len(whole[1].slots)
    assert set(part[2].slots.tolist()) <= set(later) <= set(whole[1].slots.tolist())
    places = [whole[1].slots.tolist().index(slot) for slot in later]
    torch.testing.assert_close(part[1].hidden, whole[1].hidden[places], atol=1e-6, rtol=1e-5)
    assert unroll(net, batch, 3, share=0.5, seed=1)[1].slots.tolist() == later
    assert any(unroll(net, batch, 3, share=0.5, seed=seed)[1].slots.tolist() != later for seed in range(2, 6))
