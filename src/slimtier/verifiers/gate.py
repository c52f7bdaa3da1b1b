"""VIA-SD's gate: who decides a drafted token, by what the slim verifier thinks of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from slimtier.errors import ConfigError
from slimtier.types import Decider

PRESETS = {"conservative": (0.8, 0.6), "default": (0.7, 0.5), "aggressive": (0.6, 0.4)}


@dataclass(frozen=True, slots=True)
class Gate:
    """r is the slim verifier's probability of the drafted token over that of its most probable one (VIA-SD, algorithms
    1 and 2: logits after penalties and bias, before temperature and filters).

    r >= accept: the token is kept. escalate <= r < accept: the slim verifier's own token takes its place. r < escalate:
    the target decides. `margin` above 0 is ours: whatever r is, the target also decides where the slim verifier's best
    two logits are closer than that, for there it is unsure of its own token too. `literal`: at temperatures above 0 an
    escalated token is drawn from the target afresh, instead of testing the drafted one. `reread`, ours too: before
    the block the target reads only the last so many tokens anew, and goes on from what the slim verifier wrote before
    them; None: all that it has not read.

    Example, default gate (.7, .5): the slim verifier gives .5 to its best token and .3 to the drafted one, r = .6, so
    its best token is output; had the drafted one .4 (r = .8) it would be kept, with .2 (r = .4) the target is asked.
    """

    accept: float = 0.7
    escalate: float = 0.5
    margin: float = 0.0
    literal: bool = False
    reread: int | None = None

    def __post_init__(self) -> None:
        for name in ("accept", "escalate", "margin"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0.0:  # nor NaN
                raise ConfigError(f"the gate's {name} is {value!r}: give a number, 0 or more")
        if not isinstance(self.literal, bool):
            raise ConfigError(f"the gate's literal is {self.literal!r}: give true or false")
        if self.reread is not None and (type(self.reread) is not int or self.reread < 0):
            raise ConfigError(f"the gate's reread is {self.reread!r}: give a whole number from 0, or leave it out")
        if self.accept < self.escalate:
            raise ConfigError(
                f"the gate accepts from {self.accept} and escalates below {self.escalate}: "
                "accept must be at least escalate (above 1: no token is kept, or the target always decides)"
            )

    @classmethod
    def preset(cls, name: str) -> Gate:
        """conservative, default or aggressive, as in VIA-SD's ablation."""
        if name not in PRESETS:
            raise ConfigError(f"there is no gate {name!r}: choose one of {', '.join(PRESETS)}")
        return cls(*PRESETS[name])

    @property
    def slim_alone(self) -> bool:
        """Whether at temperature 0 the slim verifier's own best token is always output, and the target never asked."""
        return self.by_best_two and self.margin == 0.0

    @property
    def by_best_two(self) -> bool:
        """Whether at temperature 0 the slim verifier's best two logits are all that decides: its own best token is
        output, or the target is asked."""
        return self.accept >= 1.0 and self.escalate == 0.0

    def decide_by_best_two(self, best: torch.Tensor, second: torch.Tensor, agrees: bool) -> Decider:
        """`decide` where `by_best_two` holds: from the best two logits, and whether the best is the drafted token's."""
        if self.margin > 0.0 and bool(second > best - self.margin):
            return "target"
        return "drafter" if agrees and self.accept <= 1.0 else "slim"

    def decide(self, logits: torch.Tensor, drafted: int | None) -> Decider:
        """Who decides, from the slim verifier's processed logits [vocab]; None: nothing was drafted here, so either
        the slim verifier, whose own best token has r = 1, or the target."""
        if self._unsure(logits):
            return "target"
        if drafted is None:
            return "slim" if self.escalate <= 1.0 else "target"
        ratio = float((logits[drafted] - logits.max()).exp())
        if ratio >= self.accept:
            return "drafter"
        return "slim" if ratio >= self.escalate else "target"

    def _unsure(self, logits: torch.Tensor) -> bool:
        """Whether another logit is within the margin of the best; counting them takes half the time of topk."""
        return self.margin > 0.0 and int((logits > logits.max() - self.margin).sum()) > 1

    def region(self, logits: torch.Tensor) -> torch.Tensor:
        """Which drafted tokens would be escalated, bool [vocab]."""
        if self._unsure(logits):
            return torch.ones_like(logits, dtype=torch.bool)
        return (logits - logits.max()).exp().double() < self.escalate  # as `decide` compares

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in values.items() if value or (name, value) == ("reread", 0))
