"""A gate tried on prompts: decoded for real, audited, timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, get_args

from slimtier.audit import audit
from slimtier.calibrate.bounds import p_value
from slimtier.calibrate.journal import Answer, Journal
from slimtier.calibrate.testing import filled, hopeless
from slimtier.drafters.base import identity_of
from slimtier.engine import Engine
from slimtier.tiers import verify_on
from slimtier.types import Decider
from slimtier.verifiers.tiered import TieredVerifier

if TYPE_CHECKING:
    from slimtier.calibrate.plan import Loss, Plan
    from slimtier.drafters.base import Drafter
    from slimtier.loading import Loaded
    from slimtier.models.slim import SlimTarget
    from slimtier.result import Result
    from slimtier.verifiers.gate import Gate


LEAST_ASKED = 30  # prompts before a gate is given up, so that its mean loss says something


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are made. `build` gives a drafter, of this name, that has learned nothing yet; `settings` are what it
    was made of, for the record."""

    name: str
    build: Callable[[], Drafter]
    num_speculative_tokens: int
    settings: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Which drafter it is, see `identity_of`."""
        return identity_of(self.build())


@dataclass(frozen=True, slots=True)
class Trial:
    """A gate and its answers to the first prompts; fewer than were to be asked where no loss of the others could have
    saved it. p_value: of "the mean loss is above epsilon", the prompts not asked taken for lossless."""

    name: str
    gate: Gate
    answers: tuple[Answer, ...]
    losses: tuple[float, ...]
    p_value: float

    @property
    def mean_loss(self) -> float:
        return fmean(self.losses)

    @property
    def speed_ratio(self) -> float | None:
        """The median of tokens/s against two tiers, prompt by prompt; None where no prompt was timed."""
        ratios = [answer.speed_ratio for answer in self.answers if answer.speed_ratio is not None]
        return median(ratios) if ratios else None

    def to_dict(self, certified: bool) -> dict[str, Any]:
        """Plain JSON values: a row of evidence."""
        tokens = sum(answer.tokens for answer in self.answers)
        deciders: tuple[Decider, ...] = get_args(Decider)
        return {
            "name": self.name,
            "gate": gate_values(self.gate),
            "certified": certified,
            "prompts": len(self.answers),
            "tokens": tokens,
            "mean_loss": self.mean_loss,
            "p_value": self.p_value,
            "speed_ratio": self.speed_ratio,
            "decided": {who: sum(answer.decided(who) for answer in self.answers) / tokens for who in deciders},
            "target_calls_per_token": sum(answer.target_calls for answer in self.answers) / tokens,
            "slim_calls_per_token": sum(answer.slim_calls for answer in self.answers) / tokens,
            "worst_shortfall": max(answer.worst_shortfall for answer in self.answers),
        }


def gate_values(gate: Gate) -> dict[str, float]:
    """The gate as it is stored."""
    values = {"accept": gate.accept, "escalate": gate.escalate, "margin": gate.margin}
    return values if gate.reread is None else {**values, "reread": gate.reread}


def loss_of(answer: Answer, loss: Loss) -> float:
    """A prompt's loss, 0 … 1."""
    return answer.differing / answer.tokens if loss == "share" else float(answer.differing > 0)


class Trials:
    """Tries gates on a model with its slim verifier; what the journal has is not decoded again."""

    def __init__(
        self,
        loaded: Loaded,
        slim: SlimTarget,
        drafting: Drafting,
        plan: Plan,
        journal: Journal,
        answered: Callable[[], None],
    ) -> None:
        """`answered` is called after each prompt."""
        self.loaded, self.slim, self.drafting, self.plan = loaded, slim, drafting, plan
        self.journal, self.answered = journal, answered
        self._two_tiers = self._engine()

    def run(self, name: str, gate: Gate, prompts: Sequence[Sequence[int]], *, whole: bool) -> Trial:
        """Answer the prompts; unless `whole`, only as long as the test can still succeed."""
        plan, values = self.plan, gate_values(gate)
        engine = self._engine(gate)
        answers: list[Answer] = []
        losses: list[float] = []
        for place, prompt in enumerate(prompts):
            answer = self.journal.find(values, prompt)
            if answer is None:
                answer = self._answer(engine, prompt, timed=place < plan.timed, first=place % 2 == 0)
                self.journal.add(values, prompt, answer)
            answers.append(answer)
            losses.append(loss_of(answer, plan.loss))
            self.answered()
            if whole or len(losses) < LEAST_ASKED:
                continue
            if hopeless(plan.bound, losses, len(prompts), plan.epsilon, plan.delta):
                break
        value = p_value(plan.bound, filled(losses, len(prompts)), plan.epsilon)
        return Trial(name, gate, tuple(answers), tuple(losses), value)

    def _engine(self, gate: Gate | None = None) -> Engine:
        """Without a gate: two tiers."""
        target, drafting = self.loaded.target, self.drafting
        drafter = drafting.build()
        if gate is not None:
            verify_on(drafter, self.slim.route, target)
        return Engine(
            target,
            drafter,
            None if gate is None else TieredVerifier(target, self.slim, gate, "calibrated"),
            tokenizer=self.loaded.tokenizer,
            num_speculative_tokens=drafting.num_speculative_tokens,
        )

    def _answer(self, engine: Engine, prompt: Sequence[int], timed: bool, first: bool) -> Answer:
        """`timed`: two tiers answer as well, before the gate's engine or (`first`) after it, so that neither always
        finds the machine as the other left it."""
        two: Result | None = self._decode(self._two_tiers, prompt) if timed and not first else None
        result = self._decode(engine, prompt)
        if timed and first:
            two = self._decode(self._two_tiers, prompt)
        audited, tiers = audit(self.loaded.target, prompt, result.token_ids), result.stats.tiers
        return Answer(
            tokens=len(result.token_ids),
            differing=sum(audited.differs),
            worst_shortfall=max(audited.shortfall),
            decided_target=tiers.decided["target"],
            decided_slim=tiers.decided["slim"],
            decided_drafter=tiers.decided["drafter"],
            target_calls=tiers.target_calls,
            slim_calls=tiers.slim_calls,
            tokens_per_s=result.stats.tokens_per_s,
            two_tier_tokens_per_s=None if two is None else two.stats.tokens_per_s,
        )

    def _decode(self, engine: Engine, prompt: Sequence[int]) -> Result:
        result = engine.generate(list(prompt), temperature=0.0, max_new_tokens=self.plan.max_new_tokens)
        assert not isinstance(result, list)
        return result
