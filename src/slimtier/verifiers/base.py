"""The seam to a verifier: it holds the target, its cache, and the rule by which drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from slimtier.types import Draft, Verdict
from slimtier.types import VerifyRow as VerifyRow

if TYPE_CHECKING:
    from slimtier.models.base import Cache


class Verifier(Protocol):
    """Invariant between rounds: the cache holds all tokens of each row but the last, len(token_ids) - 1."""

    name: str
    lossless: bool
    steady: bool  # a draft's length may change the output, so it must not follow from measured times
    wants_draft_probs: bool  # also at temperature 0

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """Run the target on each row's last token and its draft, decide, and leave the cache at
        len(token_ids) + accepted (the draft's rejected tokens cropped). `capture` names the target's layers whose
        outputs the verdicts are to carry."""
