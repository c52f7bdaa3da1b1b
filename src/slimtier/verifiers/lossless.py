"""The verifier whose output is the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slimtier.types import Draft, Verdict
from slimtier.verifiers.block import verify_blocks

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.verifiers.base import VerifyRow


class LosslessVerifier:
    """Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): at temperature 0, and under gumbel coupling,
    the very tokens of plain decoding; otherwise tokens of the same distribution, whatever the drafter proposes.

    Example: the target's greedy continuation is 5 7 7 2 and the draft 5 7 9. Slots 0 and 1 are accepted, slot 2 is
    recovered as 7, and the round gives 5 7 7 (accepted 2, examined 3). Had the draft been 5 7 7, all three would be
    accepted and the bonus would be 2.
    """

    name = "lossless"
    lossless = True
    steady = False
    wants_draft_probs = False

    def __init__(self, target: Target) -> None:
        self.target = target

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`. Raises InputError for a draft of another vocabulary, NonFiniteError for a row whose
        logits give no distribution."""
        return verify_blocks(self.target, rows, drafts, cache, capture=capture)
