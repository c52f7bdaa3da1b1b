"""The drafter that proposes nothing: plain decoding, one token a round."""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.drafters.base import DraftContext, Reading
from slimtier.types import Draft, Verdict


class NoDrafter:
    """Every draft is empty."""

    name = "none"
    capture: tuple[int, ...] = ()

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        return [Draft(())] * len(contexts)

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        pass

    def read(self, readings: Sequence[Reading]) -> None:
        pass

    def reset(self, keys: Sequence[int] | None = None) -> None:
        pass
