"""The default drafter: drafts when that is expected to pay, and as far as it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slimtier.drafters.cost import Beliefs, StepCost, best_length
from slimtier.drafters.ngram import NgramDrafter
from slimtier.sampling import is_greedy
from slimtier.types import Draft, Verdict

if TYPE_CHECKING:
    from slimtier.drafters.base import DraftContext


class AutoDrafter:
    """Copies from the row (see `NgramDrafter`) as many tokens as maximise expected output ÷ time.

    Where the choice of length cannot change the output (greedy, gumbel coupling) both sides are learned: the time of a
    step from the steps themselves, the chances from all verdicts so far. Under rejection sampling a draft's length
    changes which random number meets which token; there a row decides by its own verdicts and a fixed cost, so that a
    seed gives the same tokens again.
    """

    name = "auto"

    def __init__(self, min_ngram: int = 1, max_ngram: int = 4) -> None:
        self._ngram = NgramDrafter(min_ngram, max_ngram)
        self._cost = StepCost()
        self._beliefs = Beliefs()
        self._own: dict[int, Beliefs] = {}  # of rows under rejection sampling
        self._sizes: dict[int, int] = {}  # the match behind each row's last draft
        self._tokens = 0  # of the step being verified
        self._asked = 0.0

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        drafts = [self._propose_row(*each, len(contexts)) for each in zip(contexts, limits, strict=True)]
        self._tokens = len(drafts) + sum(len(draft.token_ids) for draft in drafts)
        self._asked = time.perf_counter()
        return drafts

    def _propose_row(self, context: DraftContext, limit: int, rows: int) -> Draft:
        match = self._ngram.match(context, limit)
        self._sizes[context.key] = match.size
        if not match.token_ids:
            return Draft(())
        if is_greedy(context.sampling) or context.sampling.coupling == "gumbel":
            beliefs, fixed, per_token = self._beliefs, self._cost.fixed() / rows, self._cost.per_token()
        else:
            beliefs = self._own.setdefault(context.key, Beliefs())
            unmeasured = StepCost()
            fixed, per_token = unmeasured.fixed(), unmeasured.per_token()
        length = best_length(beliefs.chances(match.size, len(match.token_ids)), fixed, per_token)
        return Draft(match.token_ids[:length])

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        self._cost.record(self._tokens, time.perf_counter() - self._asked)
        for key, verdict in zip(keys, verdicts, strict=True):
            beliefs = self._own.get(key, self._beliefs)
            beliefs.record(self._sizes.get(key, 0), verdict.accepted, verdict.examined)
        self._ngram.observe(keys, verdicts)

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._sizes) if keys is None else keys:
            self._sizes.pop(key, None)
            self._own.pop(key, None)
        self._ngram.reset(keys)
