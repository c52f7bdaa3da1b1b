"""The seam between the drafter, which keeps rows, and what computes: torch, or our kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Stretch:
    """New slots start, start + 1, … of a row: slot t holds the token at position t + 1 and, as `inputs`, the target's
    features of position t [n, streams · target_hidden] (or, fed back, the drafter's state [n, hidden]).
    `store` holds the row's keys and values; what it has past the last new slot is void."""

    store: Any
    start: int
    tokens: Sequence[int]
    inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a draft ends early. Confidence is the probability that the head gives its most probable token, known
    before a token is drawn. A draft ends before a token of a confidence below `confidence`, and after one where the
    product of all confidences has fallen below `go_on`. 0: neither."""

    confidence: float = 0.0
    go_on: float = 0.0

    @property
    def looks(self) -> bool:
        """Whether confidences are asked for."""
        return self.confidence > 0.0 or self.go_on > 0.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A greedy draft: its tokens, and the confidence in each (none where the stop does not look at it)."""

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]


class Runtime(Protocol):
    """The drafter's network on rows of slots, `max_positions` at most."""

    max_positions: int

    def grow(self, store: Any | None, length: int, capacity: int) -> Any:
        """A store with room for `capacity` slots that holds the first `length` of `store`, which stays as it is."""

    def forward(self, stretches: Sequence[Stretch], fed_back: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the new slots of several rows. Of the last slot of each: hidden [rows, hidden], what the head takes, and
        state [rows, hidden], what is fed back."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocab], -inf for tokens that the head cannot propose."""

    def chain(self, stretches: Sequence[Stretch], steps: Sequence[int], stop: Stop) -> list[Chain]:
        """Of each row, after its stretch of features: the head's argmax (the lowest id of a tie), fed back with the
        state, up to steps[r] tokens. Raises NonFiniteError for scores that are not finite."""
