"""The seam to a drafter: it proposes tokens for rows, and learns what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slimtier.types import Draft, SamplingParams, Verdict

if TYPE_CHECKING:
    import torch

    from slimtier.models.base import Cache
    from slimtier.sampling import Noise


@dataclass(frozen=True, slots=True)
class DraftContext:
    """One row as a drafter sees it. `key` names the sequence over its life (row numbers change as rows finish);
    `token_ids` is prompt + output so far (do not modify); `noise` is the drafter's own stream of randomness. `cache` is
    the target's, its row i that of the i-th context: a drafter that runs the target on a route may go on from it, and
    leaves it as it was. `report`: the verifier wants the distribution of greedy tokens too, at temperature 1.
    `steady`: the verifier is lossy, a draft's length may change the output, and must follow from the row alone."""

    key: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    noise: Noise
    cache: Cache | None = None
    report: bool = False
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """A stretch of a prompt that the target has read. `features` [n, streams · hidden] are its captured states at
    positions start, start + 1, …; `token_ids` is the whole prompt. What the row held from `start` on is void.

    With `source` the row first becomes what the row of that key is before `start`: both have the same tokens up to
    and including `start`. So the answers to one prompt, and the turns of a chat, read it once.
    """

    key: int
    token_ids: Sequence[int]
    start: int
    features: torch.Tensor | None = None
    source: int | None = None


class Drafter(Protocol):
    """Proposals for the rows of a batch. A row that is never mentioned again after `reset` holds no memory.

    `capture` names the target's layers whose outputs the drafter reads. If there are any, `read` brings those of the
    prompt and each verdict's `features` those of the tokens kept; so before a proposal for n tokens the drafter has
    had the features of positions 0 … n - 2.
    """

    name: str
    capture: tuple[int, ...]

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        """A draft of at most limits[i] tokens (may be 0, the draft may be empty) that continues contexts[i]."""

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """What the verifier decided on the last proposals."""

    def read(self, readings: Sequence[Reading]) -> None:
        """Features of prompts, in order of position. Never called where `capture` is empty."""

    def reset(self, keys: Sequence[int] | None = None) -> None:
        """Forget these sequences (None: all)."""


def identity_of(drafter: Drafter) -> str:
    """Which drafter this is, for evidence that holds for no other: its name, and what its drafts depend on."""
    return str(getattr(drafter, "identity", drafter.name))
