"""Batches come in order, each once, whether they are read ahead or not."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest
import torch

from slimtier.train.loop import batches_of


class Counting:
    """A trainer of four steps whose batches are their numbers."""

    def __init__(self, device: str) -> None:
        self.device, self.step, self.steps = torch.device(device), 1, 4
        self.threads: set[int] = set()

    def batch(self, step: int) -> int:
        self.threads.add(threading.get_ident())
        return step


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_steps_that_are_left_get_their_batches(device: str) -> None:
    trainer: Any = Counting(device)
    with closing(batches_of(trainer)) as batches:
        for batch in batches:
            assert batch == trainer.step
            trainer.step += 1
    assert trainer.step == 4
    assert (threading.get_ident() in trainer.threads) == (device == "cpu")


def test_a_run_that_stops_leaves_no_thread() -> None:
    trainer: Any = Counting("cuda")
    before = threading.active_count()
    with closing(batches_of(trainer)) as batches:
        next(batches)
    assert threading.active_count() == before
