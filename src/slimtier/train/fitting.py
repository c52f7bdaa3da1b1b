"""What is fitted to a few captured rows before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.train.batches import Batch
from slimtier.train.config import LossPart
from slimtier.train.gradients import Gradients
from slimtier.train.parallel import Ranks
from slimtier.train.shards import RowPlace
from slimtier.train.unroll import unroll

_SCALES = tuple(1.2**power for power in range(-8, 2))


def first_rows(rows: Sequence[RowPlace], labels: int) -> list[RowPlace]:
    """As many of the first rows as have `labels` labels together."""
    before = accumulate((row.labels for row in rows), initial=0)
    return [row for row, count in zip(rows, before, strict=False) if count < labels]


def loss_of(network: EagleNetwork, batch: Batch, loss: LossPart) -> float:
    """The mean loss of the first draft step, over the whole vocabulary."""
    return Gradients(network, replace(loss, candidates=0), Ranks()).loss_of(batch)


def soften(network: EagleNetwork, batch: Batch, loss: LossPart) -> None:
    """Scale the last norm so that the loss of the first draft step is least: what was solved points in the right
    direction, but a norm makes each state as long as the target's, however unsure it is."""
    with torch.no_grad():
        whole = network.norm.weight.clone()
        found = []
        for scale in _SCALES:
            network.norm.weight.copy_(whole * scale)
            found.append((loss_of(network, batch, loss), scale))
        network.norm.weight.copy_(whole * min(found)[1])


@torch.no_grad()
def state_moments(network: EagleNetwork, batch: Batch) -> torch.Tensor:
    """[hidden, hidden] float64: second moments of what the head takes at the first draft step."""
    hidden = unroll(network, batch, 1)[0].hidden.double()
    moments: torch.Tensor = hidden.T @ hidden / len(hidden)
    return moments
