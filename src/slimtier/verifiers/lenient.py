"""The papers' lossy baseline: a verifier that keeps more than it should."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from slimtier.errors import ConfigError
from slimtier.sampling import judge
from slimtier.types import Draft, Verdict
from slimtier.verifiers.block import refuse_gumbel, verify_blocks

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.verifiers.base import VerifyRow


class LenientVerifier:
    """Lossy: the output is not the target's. A drafted token is kept with min(1, target / ((1 - lenience) draft)) and
    replaced from norm((target - draft)+); at temperature 0 it is kept if the target's probability of it is at least
    (1 - lenience) times that of the target's argmax.

    Example: lenience 0.5, target probabilities (0.6, 0.4) at temperature 0. A drafted token 1 is kept, for 0.4 is at
    least 0.5 * 0.6; with lenience 0.2 it is not (0.4 < 0.48) and token 0 is emitted.
    """

    name = "lenient"
    lossless = False
    steady = True
    wants_draft_probs = False

    def __init__(self, target: Target, lenience: float) -> None:
        if not 0.0 < lenience < 1.0:
            raise ConfigError(
                f"lenience is {lenience}: give a number above 0 and below 1, or use the verifier 'lossless'"
            )
        self.target = target
        self.lenience = lenience

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`. Raises InputError for gumbel coupling, under which a token is kept or not, with
        nothing for a lenience to widen."""
        for row in rows:
            refuse_gumbel(row.sampling, self.name)
        return verify_blocks(self.target, rows, drafts, cache, partial(judge, lenience=self.lenience), capture)
