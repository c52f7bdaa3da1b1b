"""What the tests of tiers share: stubs that are quick and keep a log, and slim verifiers of any quality."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from slimtier.drafters.base import Drafter
from slimtier.drafters.tiered import TieredDrafter
from slimtier.models.slim import SlimTarget
from slimtier.types import Route
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubTarget

SKIP, DEEP = Route.skipping(4, [1]), Route.skipping(4, [1, 2])
NOISES = {"always": 0.0, "sometimes": 2.0, "never": 100.0}  # how often the target keeps the slim verifier's tokens


def a_few(every: int, *axes: Iterable[Any]) -> list[Any]:
    """All combinations; those but every so many-th are slow."""
    combinations = itertools.product(*axes)
    return [
        pytest.param(*each, marks=() if i % every == 0 else pytest.mark.slow) for i, each in enumerate(combinations)
    ]


class Quick(StubTarget):
    """A stub that works out no logits twice, and logs under which route it was fed how many tokens of each row."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known: dict[Any, torch.Tensor] = {}
        self.log: list[tuple[Route | None, tuple[int, ...]]] = []

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        seen = tuple(history) if self.order is None else tuple(history)[len(history) - self.order :]
        if (seen, route) not in self.known:
            self.known[seen, route] = super().logits_of(history, route)
        return self.known[seen, route].clone()

    def forward(self, tokens: Any, cache: Any, lengths: Any, *, route: Route | None = None, **options: Any) -> Any:
        route = None if route == Route.full(self.info.num_layers) else route  # as every runtime does
        self.log.append((route, tuple(lengths)))
        return super().forward(tokens, cache, lengths, route=route, **options)


def small(noise: str = "sometimes", **options: Any) -> Quick:
    """Few tokens and a short memory: loops are common, and guesses come true."""
    return Quick(**{"vocab_size": 12, "order": 2, "scale": 2.0, "route_noise": NOISES[noise], **options})


def tiers(
    target: Any, inner: Drafter, flushes: Sequence[int] = (4,), count: int = 3, routes: Sequence[Route] = (DEEP,)
) -> TieredDrafter:
    """`inner` under a slim verifier for each route, the dearest first, as with the flushes."""
    for route, flush in zip(reversed(routes), reversed(flushes), strict=True):
        inner = TieredDrafter(inner, LosslessVerifier(SlimTarget(target, route)), flush, count)
        count = flush
    assert isinstance(inner, TieredDrafter)
    return inner
