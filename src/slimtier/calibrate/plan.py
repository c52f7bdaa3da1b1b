"""What a calibration is told, and the gates it tries in their order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from slimtier.calibrate.bounds import Bound
from slimtier.calibrate.testing import prompts_needed
from slimtier.errors import ConfigError, InputError
from slimtier.verifiers.gate import PRESETS, Gate

Loss = Literal["share", "any"]
MARGINS = (3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.0)
ACCEPTS = (0.9, 0.8, 0.7, 0.6, 0.5)
REREAD = 12  # of a gate that asks the target, where the route leaves keys and values of every layer


@dataclass(frozen=True, slots=True)
class Plan:
    """epsilon, delta: the mean loss is to be at most epsilon with confidence 1 - delta. loss: of a prompt, the `share`
    of its output tokens that differ from the target's argmax, or 1 if `any` does. prompts: how many, drawn by `seed`
    from those that have at most max_prompt_tokens. timed: how many of them two tiers answer too, for the speed, and the
    paper's gates. full: settings after the first that fails are decoded as well. margins, accepts: the gates, from the
    safest: accept 1 with each margin, then margin 0 with each accept."""

    epsilon: float = 0.02
    delta: float = 0.05
    bound: Bound = "betting"
    loss: Loss = "share"
    prompts: int = 300
    max_prompt_tokens: int = 512
    max_new_tokens: int = 64
    seed: int = 0
    timed: int = 24
    full: bool = False
    margins: tuple[float, ...] = MARGINS
    accepts: tuple[float, ...] = ACCEPTS

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number above 0 and below 1")
        for name, least in (("prompts", 1), ("max_prompt_tokens", 1), ("max_new_tokens", 1), ("timed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: give {least} or more")
        if self.bound == "binomial" and self.loss != "any":
            raise ConfigError("the binomial bound is for losses of 0 or 1: add loss=any, or use betting")
        for name in ("margins", "accepts"):
            values = getattr(self, name)
            if any(later >= earlier for earlier, later in pairwise(values)):
                raise ConfigError(f"{name} are {list(values)}: the safest comes first, so each is less than the last")
        if not self.path():
            raise ConfigError("margins and accepts are both empty: give at least one")

    def path(self, reread: int | None = None) -> dict[str, Gate]:
        """The gates that are tested, in this order. `reread` is for those that ask the target."""
        asking = [Gate(1.0, 0.0, margin, reread=reread if margin else None) for margin in self.margins]
        gates = asking + [Gate(accept, 0.0) for accept in self.accepts]
        return {str(gate): gate for gate in gates}

    def presets(self) -> dict[str, Gate]:
        """The paper's gates, which are only looked at."""
        return {name: Gate.preset(name) for name in PRESETS if self.timed}

    def check_support(self, count: int) -> None:
        """Raises InputError if `count` prompts could not certify even what never differs."""
        needed = prompts_needed(self.bound, [0.0], self.epsilon, self.delta)
        if needed is None or count < needed:
            raise InputError(
                f"{count} prompts cannot support a bound of {self.epsilon} at confidence {1 - self.delta:.12g}, even "
                f"if no token differed: give at least {needed}, or a larger epsilon or delta"
            )
