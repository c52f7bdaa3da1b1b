"""A drafter that only keeps the features it is given, and checks whose they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slimtier.drafters.base import DraftContext, Drafter, Reading
from slimtier.models.base import Cache
from slimtier.models.slim import SomeRows
from slimtier.types import Draft, Route, Verdict
from tests.drafters.eagle.drafts import CAPTURE
from tests.stubs import StubCache, StubTarget


class Remembering:
    """Drafts as `drafts` does. At every proposal each position but the last must have the features that whoever wrote
    its keys and values gave for it, and the token after it. `checked` counts proposals, `wrong` those without."""

    name = "remembering"
    capture = CAPTURE

    def __init__(self, target: StubTarget, drafts: Drafter) -> None:
        self.target = target
        self.drafts = drafts
        self.held: dict[int, list[tuple[int, torch.Tensor]]] = {}
        self.checked = self.wrong = 0

    def read(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            if reading.source is not None:
                self.held[reading.key] = list(self.held[reading.source][: reading.start])
            held = self.held.setdefault(reading.key, [])
            del held[reading.start :]
            self.wrong += len(held) != reading.start
            if reading.features is not None:
                after = reading.token_ids[reading.start + 1 :][: len(reading.features)]
                held.extend(zip(after, reading.features, strict=True))

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        for key, verdict in zip(keys, verdicts, strict=True):
            held = self.held.setdefault(key, [])
            self.wrong += [token for token, _ in held[len(held) - len(verdict.lagged) :]] != list(verdict.lagged)
            del held[len(held) - len(verdict.lagged) :]
            assert verdict.features is not None
            held.extend(zip((*verdict.lagged, *verdict.token_ids), verdict.features, strict=True))

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        if contexts:
            assert contexts[0].cache is not None
            written = _written(contexts[0].cache)
            for context, routes in zip(contexts, written, strict=True):
                self._check(context, routes)
        return self.drafts.propose(contexts, limits)

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self.held) if keys is None else keys:
            self.held.pop(key, None)

    def check_own(self, context: DraftContext) -> None:
        """All features must be the target's own."""
        self._check(context, [None] * (len(context.token_ids) - 1))

    def _check(self, context: DraftContext, routes: Sequence[Route | None]) -> None:
        tokens, held = list(context.token_ids), self.held.get(context.key, [])
        states = [self.target.logits_of(tokens[: end + 1], route) for end, route in enumerate(routes)]
        expected = [torch.cat([state + layer for layer in CAPTURE]) for state in states]
        right = [token for token, _ in held] == tokens[1:] and len(routes) == len(held)
        right = right and all(torch.equal(own, want) for (_, own), want in zip(held, expected, strict=True))
        self.checked += 1
        self.wrong += not right


def _written(cache: Cache) -> list[list[Route | None]]:
    """Under which route each token of each row was written."""
    if isinstance(cache, SomeRows):
        whole = _written(cache.whole)
        return [whole[row] for row in cache.rows]
    assert isinstance(cache, StubCache)
    return cache.routes
