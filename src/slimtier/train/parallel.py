"""Data parallel training under torchrun: each process takes its part of every batch, gradients are summed over gloo."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")
_PATIENCE = timedelta(hours=2)  # the first process validates while the others wait


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all that train together."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """The one that validates, writes and talks."""
        return self.rank == 0

    def part(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's share of a batch; perhaps none."""
        return items[self.rank :: self.world]

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        if self.world == 1:
            return values
        summed = values.cpu().clone()
        dist.all_reduce(summed)
        return summed.to(values.device)

    def sum_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes; a weight that none was computed for counts 0."""
        if self.world == 1:
            return
        weights = list(weights)
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        summed = self.total(torch.cat([part.flatten() for part in parts]))
        for weight, part in zip(weights, torch.split(summed, [w.numel() for w in weights]), strict=True):
            weight.grad = part.view_as(weight)

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.total(torch.tensor(int(flag))))


def join() -> Ranks:
    """The processes that torchrun started, or this one alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=_PATIENCE)
    return Ranks(dist.get_rank(), world) if world > 1 else Ranks()
