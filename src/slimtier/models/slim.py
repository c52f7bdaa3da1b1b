"""The slim verifier: the target run on a route (VIA-SD, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slimtier.models.base import Cache, Target, VocabWeight
from slimtier.models.rows import check_length

if TYPE_CHECKING:
    import torch

    from slimtier.types import Route


class SomeRows:
    """Some rows of a cache, in its order (satisfies `Cache`, but for `keep`), for a `SlimTarget` to work on while the
    others wait."""

    def __init__(self, whole: Cache, rows: Sequence[int]) -> None:
        assert list(rows) == sorted(set(rows)), "tokens are packed in the order of the whole cache's rows"
        self.whole = whole
        self.rows = list(rows)

    @property
    def lengths(self) -> list[int]:
        return [self.whole.lengths[row] for row in self.rows]

    @property
    def verified(self) -> list[int]:
        return [self.whole.verified[row] for row in self.rows]

    def spread(self, lengths: Sequence[int]) -> list[int]:
        """What a pass over these rows appends to each row of the whole cache."""
        given = dict(zip(self.rows, lengths, strict=True))
        return [given.get(row, 0) for row in range(len(self.whole.lengths))]

    def crop(self, lengths: Sequence[int]) -> None:
        """See `Cache.crop`."""
        given = dict(zip(self.rows, lengths, strict=True))
        self.whole.crop([given.get(row, length) for row, length in enumerate(self.whole.lengths)])

    def adopt(self, rows: Sequence[int]) -> None:
        """See `Cache.adopt`."""
        self.whole.adopt([self.rows[row] for row in rows])

    def keep(self, rows: Sequence[int]) -> None:
        raise NotImplementedError("rows are dropped from the whole cache")


class SlimTarget:
    """`target` on `route` (satisfies `Target`): same embeddings, norms and caches, no weights of its own but the
    low-precision copies that the route asks for.

    It reads and writes the target's caches: it goes on from what the target wrote, and what it writes is cropped before
    the target goes on. So a prompt is read once, and a run of the slim verifier costs no memory of keys and values.
    """

    def __init__(self, target: Target, route: Route) -> None:
        """Raises InputError for a route of another number of layers."""
        check_length(route, target.info.num_layers)
        self.target = target
        self.route = route
        measure = getattr(target, "route_bytes", None)
        step, copies = measure(route) if measure is not None else (target.info.weight_bytes, 0)
        self.extra_bytes: int = copies  # of the low-precision copies
        self.info = replace(target.info, name=f"{target.info.name} on a route", weight_bytes=step)
        self._own_head = {"route": route} if route.head != "full" else {}

    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> Cache:
        """See `Target.begin`: a cache of the target's."""
        return self.target.begin(num_rows, capacity, inputs)

    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """See `Target.forward`; another `route` goes before its own."""
        while isinstance(cache, SomeRows):
            lengths, cache = cache.spread(lengths), cache.whole
        return self.target.forward(tokens, cache, lengths, route=route or self.route, capture=capture)

    def head(self, hidden: torch.Tensor, reduce: Any = "logits") -> Any:
        """See `Target.head`."""
        return self.target.head(hidden, reduce, **self._own_head)

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """See `Target.weight`."""
        return self.target.weight(name)
