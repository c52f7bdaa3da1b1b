"""The default drafter: drafts when that is expected to pay, by what pays best, and as far as it does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slimtier.drafters.cost import (
    COPIED_DRAWN,
    DRAFT_SLOPE,
    DRAFTED,
    DRAFTED_DRAWN,
    DRAWN_SHARES,
    DRAWN_SHARES_OTHERWISE,
    DRAWN_WEIGHT,
    GREEDY_SHARES,
    GREEDY_SHARES_OTHERWISE,
    Beliefs,
    Calibration,
    Plan,
    StepCost,
    best_plan,
)
from slimtier.drafters.eagle.runtime import Stop
from slimtier.drafters.ngram import NgramDrafter
from slimtier.sampling import is_greedy
from slimtier.types import Draft, Verdict

if TYPE_CHECKING:
    from slimtier.drafters.base import DraftContext, Reading
    from slimtier.drafters.eagle.drafter import Drafted, EagleDrafter

_DRAFT_SHARE = 0.05  # of a verifying step, what drafting a token takes until measured
_PROBE_EVERY = 32  # rounds after which a network that did not pay is tried again, as its text may have changed
_PROBED = 4  # rows of a batch: each reads what it has not read yet, and few say as much as all
_MOST_WAITING = 16  # a call that also reads more slots than this says nothing of what drafting takes


@dataclass(slots=True)
class Experience:
    """What the verdicts say of copies, and of what the network drafted. `idle`: rounds since that was last asked."""

    copied: Beliefs = field(default_factory=Beliefs)
    drafted: Beliefs = field(default_factory=lambda: Beliefs(DRAFTED))
    calibration: Calibration = field(default_factory=Calibration)
    idle: int = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a row's share of a round: verifying (a + b · tokens), and drafting by the network."""

    fixed: float
    per_token: float
    draft_fixed: float
    draft_per_token: float


@dataclass(frozen=True, slots=True)
class Asked:
    """How many tokens the network is to draft for a row at most, and when to stop. A `probe` is kept whole."""

    limit: int
    stop: Stop
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where a row's last draft came from: a match of `size` tokens, or the network with these confidences."""

    size: int = 0
    confidences: tuple[float, ...] | None = None


class AutoDrafter:
    """Copies from the row (see `NgramDrafter`), or drafts by a network if there is one for the model, whichever is
    expected to give more output a second, and as many tokens as maximise it.

    Where the choice of length cannot change the output (greedy, gumbel coupling, and the verifier lossless) both sides
    are learned: the time of verifying and of drafting from the rounds themselves, the chances from all verdicts so far,
    and what the network drafted is cut to what its confidences promise. Under rejection sampling a draft's length
    changes which random number meets which token, under a lossy verifier what it keeps. There a row decides by its own
    verdicts, by fixed costs and by confidences that are known before a token is drawn, so that a seed gives the same
    tokens again and their distribution is the target's, where the verifier's rule is that.
    """

    name = "auto"

    def __init__(
        self, min_ngram: int = 1, max_ngram: int = 4, network: EagleDrafter | None = None, precision: str = "fp32"
    ) -> None:
        self.capture: tuple[int, ...] = network.capture if network is not None else ()
        self._ngram = NgramDrafter(min_ngram, max_ngram)
        self.network = network
        self.verified_at(precision)
        self._verifying = StepCost()
        self._drafting = StepCost(DRAFT_SLOPE)
        self._shared = Experience()
        self._own: dict[int, Experience] = {}  # of rows under rejection sampling
        self._attempts: dict[int, Attempt] = {}
        self._rows, self._tokens = 0, 0  # of the step being verified
        self._asked = 0.0

    def verified_at(self, precision: str) -> None:
        """At which precision the model that verifies runs (see `price_of`): so much costs a token where nothing may be
        learned."""
        self._drawn = _fixed_costs(*DRAWN_SHARES.get(precision, DRAWN_SHARES_OTHERWISE))
        self._greedy = _fixed_costs(*GREEDY_SHARES.get(precision, GREEDY_SHARES_OTHERWISE))

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return ", ".join([self.name, self._ngram.identity, *([self.network.identity] if self.network else [])])

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        drafts: list[Draft] = []
        by_network: dict[int, Asked] = {}
        for place, (context, limit) in enumerate(zip(contexts, limits, strict=True)):
            match = self._ngram.match(context, limit)
            chances = self._experience(context).copied.chances(match.size, len(match.token_ids))
            costs = self._costs(context, len(contexts))
            copy = best_plan(chances, costs.fixed, costs.per_token)
            drafts.append(Draft(match.token_ids[: copy.length]))
            self._attempts[context.key] = Attempt(match.size)
            asked = self._ask_network(context, limit, costs, copy)
            enough = len(by_network) >= _PROBED and _may_learn(context)
            if asked is not None and not (asked.probe and enough):
                by_network[place] = asked
        if by_network:
            self._draft(contexts, by_network, drafts)
        self._count_idle(contexts, by_network)
        self._rows = len(drafts)
        self._tokens = len(drafts) + sum(len(draft.token_ids) for draft in drafts)
        self._asked = time.perf_counter()
        return drafts

    def _count_idle(self, contexts: Sequence[DraftContext], asked: Mapping[int, Asked]) -> None:
        self._shared.idle = 0 if asked else self._shared.idle + 1
        for place, context in enumerate(contexts):
            if not _may_learn(context):
                own = self._experience(context)
                own.idle = 0 if place in asked else own.idle + 1

    def _ask_network(self, context: DraftContext, limit: int, costs: Costs, copy: Plan) -> Asked | None:
        """None where copying, or drafting nothing, is expected to give more."""
        if self.network is None or limit <= 0:
            return None
        experience = self._experience(context)
        step = costs.per_token + costs.draft_per_token
        chances = experience.drafted.chances(0, limit)
        plan = best_plan(chances, costs.fixed + costs.draft_fixed, step)
        if plan.length == 0 or plan.rate <= copy.rate:
            due = experience.idle >= _PROBE_EVERY
            return Asked(min(limit, 2), Stop(go_on=1e-6), probe=True) if due else None
        # one more token pays while reach · chance of the next > what is output in the time it takes
        reach = min(plan.rate * step / chances[min(1, limit - 1)], 1.0)
        return Asked(limit, Stop(go_on=experience.calibration.product_of(reach)))

    def _draft(self, contexts: Sequence[DraftContext], asked: Mapping[int, Asked], drafts: list[Draft]) -> None:
        """Put the network's drafts into the places it was asked for."""
        assert self.network is not None
        rows = [contexts[place] for place in asked]
        waiting = sum(self.network.waiting(row.key) for row in rows)
        started = time.perf_counter()
        found = self.network.draft(rows, [one.limit for one in asked.values()], [one.stop for one in asked.values()])
        seconds = time.perf_counter() - started
        tokens = sum(len(one.draft.token_ids) for one in found)
        if tokens and waiting <= _MOST_WAITING * len(rows):
            self._drafting.record(tokens, seconds, len(rows))
        for place, context, one in zip(asked, rows, found, strict=True):
            self._attempts[context.key] = Attempt(confidences=one.confidences)
            whole = asked[place].probe or not _may_learn(context)
            drafts[place] = one.draft if whole else self._cut(one, self._costs(context, len(contexts)))

    def _cut(self, drafted: Drafted, costs: Costs) -> Draft:
        """As many of the tokens as are worth verifying, now that they are there."""
        chances = self._shared.calibration.chances(drafted.confidences)
        length = best_plan(chances, costs.fixed, costs.per_token).length
        if length < len(chances):  # will not be looked at; were it not counted, such drafts would be asked for again
            self._shared.drafted.expect(length, chances[length])
        return Draft(drafted.draft.token_ids[:length])

    def _experience(self, context: DraftContext) -> Experience:
        if _may_learn(context):
            return self._shared
        if context.key not in self._own:
            drawn = (Beliefs(COPIED_DRAWN, DRAWN_WEIGHT), Beliefs(DRAFTED_DRAWN, DRAWN_WEIGHT))
            self._own[context.key] = Experience() if is_greedy(context.sampling) else Experience(*drawn)
        return self._own[context.key]

    def _costs(self, context: DraftContext, rows: int) -> Costs:
        if not _may_learn(context):
            return self._greedy if is_greedy(context.sampling) else self._drawn
        fixed, per_token = self._verifying.fixed() / rows, self._verifying.per_token()
        if not self._drafting.is_measured:
            return Costs(fixed, per_token, 0.0, _DRAFT_SHARE * (fixed + per_token))
        return Costs(fixed, per_token, self._drafting.fixed() / rows, self._drafting.per_token())

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        self._verifying.record(self._tokens, time.perf_counter() - self._asked, self._rows)
        for key, verdict in zip(keys, verdicts, strict=True):
            experience, attempt = self._own.get(key, self._shared), self._attempts.get(key, Attempt())
            if attempt.confidences is None:
                experience.copied.record(attempt.size, verdict.accepted, verdict.examined)
            else:
                experience.drafted.record(0, verdict.accepted, verdict.examined)
                experience.calibration.record(attempt.confidences, verdict.accepted, verdict.examined)
        self._ngram.observe(keys, verdicts)
        if self.network is not None:
            self.network.observe(keys, verdicts)

    def read(self, readings: Sequence[Reading]) -> None:
        if self.network is not None:
            self.network.read(readings)

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._attempts) if keys is None else keys:
            self._attempts.pop(key, None)
            self._own.pop(key, None)
        self._ngram.reset(keys)
        if self.network is not None:
            self.network.reset(keys)


def _fixed_costs(verify: float, call: float, draft: float) -> Costs:
    """From shares of a verifying step (see `DRAWN_SHARES`)."""
    return Costs(1.0 - verify, verify, call, draft)


def _may_learn(context: DraftContext) -> bool:
    """Whether the length of a draft may depend on anything, for it cannot change the output."""
    return not context.steady and (is_greedy(context.sampling) or context.sampling.coupling == "gumbel")
