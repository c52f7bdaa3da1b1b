"""The seam to a drafter: it proposes tokens for rows, and learns what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slimtier.types import Draft, SamplingParams, Verdict

if TYPE_CHECKING:
    from slimtier.sampling import Noise


@dataclass(frozen=True, slots=True)
class DraftContext:
    """One row as a drafter sees it. `key` names the sequence over its life (row numbers change as rows finish);
    `token_ids` is prompt + output so far (do not modify); `noise` is the drafter's own stream of randomness."""

    key: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    noise: Noise


class Drafter(Protocol):
    """Proposals for the rows of a batch. A row that is never mentioned again after `reset` holds no memory."""

    name: str

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        """A draft of at most limits[i] tokens (may be 0, the draft may be empty) that continues contexts[i]."""

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """What the verifier decided on the last proposals."""

    def reset(self, keys: Sequence[int] | None = None) -> None:
        """Forget these sequences (None: all)."""
