"""Teaches an induction head where to point, apart from all else that the drafter learns: a pointer sentinel (Merity et
al. 2016) over the text so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.train.batches import Batch, Segment, load
from slimtier.train.shards import RowPlace, Rows

_RATE, _WARMUP = 6e-3, 10
_ROWS = 8  # of a step
_ELSEWHERE = 0.02  # probability that the rest of the drafter gives the right token, where the head points at nothing
_LEAST = 1e-4
_SYMMETRY = 0.3  # noise in the query heads after the first, relative: they are to point at different things


class Pointer(nn.Module):
    """The query and key weights of the layer's second key-value head, [group · dim, width] and [dim, width]."""

    def __init__(self, layer: Layer, generator: torch.Generator) -> None:
        super().__init__()
        self.dim = layer.config.head_dim
        self.group = layer.config.num_heads // layer.config.num_kv_heads
        size = self.group * self.dim
        query = layer.q_proj.weight.detach()[size : 2 * size].clone()
        noise = torch.randn(query.shape, generator=generator) * query.std() * _SYMMETRY
        noise[: self.dim] = 0.0
        self.query = nn.Parameter(query + noise)
        self.key = nn.Parameter(layer.k_proj.weight.detach()[self.dim : 2 * self.dim].clone())

    def weights(self, network: EagleNetwork, inputs: torch.Tensor, batch: Batch, segment: Segment) -> torch.Tensor:
        """How much each slot of the segment attends to each key of its row before it or its own, [m, n], averaged over
        the query heads; inputs [N, width] of all keys."""
        asking, seen = slice(segment.key_first, segment.key_stop), slice(segment.key_row, segment.key_stop)
        queries = F.linear(inputs[asking], self.query).view(-1, self.group, self.dim)
        keys = F.linear(inputs[seen], self.key).view(-1, 1, self.dim)
        queries = network.rotate(queries, batch.positions[asking])
        keys = network.rotate(keys, batch.positions[seen])
        scores = torch.einsum("mgd,nd->gmn", queries, keys[:, 0]) / math.sqrt(self.dim)
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - scores.shape[1] + 1)
        return scores.masked_fill(future, -torch.inf).softmax(2).mean(0)

    def loss(self, network: EagleNetwork, batch: Batch) -> torch.Tensor:
        """Mean over the slots of minus the log of the probability that the target's first choice gets: copied from
        where the head points, or, as much as it points at the first position, from elsewhere."""
        inputs = _inputs(network, batch)
        losses = []
        for segment in batch.segments:
            weights = self.weights(network, inputs, batch, segment)
            wanted = batch.top_ids[batch.first_label[segment.first : segment.stop], 0]
            copied = batch.text[batch.key_text[segment.key_row : segment.key_stop]]
            right = copied[None, :] == wanted[:, None]
            right[:, 0] = False
            found = (weights * right).sum(1) + weights[:, 0] * _ELSEWHERE
            losses.append(-(found + _LEAST).log())
        return torch.cat(losses).mean()


@torch.no_grad()
def _inputs(network: EagleNetwork, batch: Batch) -> torch.Tensor:
    layer = network.layers[0]
    assert isinstance(layer, Layer)
    embedded = F.embedding(batch.text[batch.key_text], network.embedding)
    return layer.inputs(embedded, network.fuse(batch.features.float()))[0]


def fit_pointer(network: EagleNetwork, capture: Rows, rows: Sequence[RowPlace], steps: int, seed: int) -> None:
    """`steps` of Adam on the queries and keys of the layer's second key-value head."""
    layer = network.layers[0]
    assert isinstance(layer, Layer)
    generator = torch.Generator().manual_seed(seed)
    pointer = Pointer(layer, generator)
    optimiser = torch.optim.Adam(pointer.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / _WARMUP) * (1 - step / max(1, steps))
    )
    for _, batch in zip(range(steps), _batches(capture, rows, generator), strict=False):
        optimiser.zero_grad()
        torch.autograd.backward(pointer.loss(network, batch))
        optimiser.step()
        schedule.step()
    size = pointer.group * pointer.dim
    with torch.no_grad():
        layer.q_proj.weight[size : 2 * size] = pointer.query
        layer.k_proj.weight[pointer.dim : 2 * pointer.dim] = pointer.key


def _batches(capture: Rows, rows: Sequence[RowPlace], generator: torch.Generator) -> Iterator[Batch]:
    """Rows at random, over and over."""
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for start in range(0, len(order), _ROWS):
            yield load(capture, [rows[index] for index in order[start : start + _ROWS]])
