"""Speculative cascades: what a deferral rule makes of a drafter's and a target's distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimtier.config import refuse_unknown
from slimtier.errors import ConfigError

if TYPE_CHECKING:
    import torch

# (draft_gate, target_gate [vocab], total variation, alpha) -> which drafted tokens are kept: bool, [vocab] or of all
Kept = Callable[["torch.Tensor", "torch.Tensor", float, float], "torch.Tensor"]

# Narasimhan et al. 2025, equations 2, 5, 10, 13, 14, 15; and from where (never) to where (always) alpha goes.
_RULES: dict[str, tuple[Kept, float, float]] = {
    "chow": (lambda draft, target, variation, alpha: draft.max() >= 1.0 - alpha, 0.0, 1.0),
    "diff": (lambda draft, target, variation, alpha: draft.max() >= target.max() - alpha, -1.0, 1.0),
    "opt": (
        lambda draft, target, variation, alpha: draft.max() >= target.max() - alpha * variation,
        -math.inf,
        math.inf,
    ),
    "token_v1": (lambda draft, target, variation, alpha: draft >= target.max() - alpha, -1.0, 1.0),
    "token_v2": (lambda draft, target, variation, alpha: target >= target.max() - alpha, -1.0, 1.0),
    "token_v3": (lambda draft, target, variation, alpha: target >= (1.0 - alpha) * target.max(), 0.0, 1.0),
}
RULES = tuple(_RULES)
TARGET_RULES = ("token_v2", "token_v3")  # they look at nothing but the target's distribution


@dataclass(frozen=True, slots=True)
class CascadeRule:
    """A deferral rule of speculative cascades (Narasimhan et al. 2025, "Faster Cascades via Speculative Decoding").

    A rule says which of the drafter's tokens stand. The output is to follow draft · 1[kept] + draft(not kept) · target.
    chow, diff and opt keep all tokens of a slot or none, so their output is the drafter's or the target's distribution;
    the others choose token by token. The larger `alpha`, the more is kept:

    | rule | keeps a token if |
    | --- | --- |
    | chow | max draft >= 1 − alpha |
    | diff | max draft >= max target − alpha |
    | opt | max draft >= max target − alpha · TV |
    | token_v1 | draft(token) >= max target − alpha |
    | token_v2 | target(token) >= max target − alpha |
    | token_v3 | target(token) >= (1 − alpha) · max target |

    draft and target here are the *gates*: probabilities at temperature 1, whatever the request's temperature; only TV
    is between the two distributions that are drawn from, as in the authors' notebook. So at temperature 0, where TV is
    1 or the two argmax are the same, opt, diff and token_v1 are one rule.

    At alpha −1 diff, token_v1 and token_v2 keep nothing and the output is the target's, as it is for chow at 0 unless
    the drafter gives a token the probability 1, and for opt as alpha falls without end. token_v2 and token_v3 at 0 keep
    the target's argmax, which is lossless at temperature 0 alone. Ours: no rule keeps what the target has banned
    (probability 0).

    Example: draft (.5, .3, .2), target (.4, .4, .2), token_v3 with alpha .1: tokens 0 and 1 are kept (.4 >= .36), and
    the output follows (.5, .3, 0) + .2 · (.4, .4, .2) = (.58, .38, .04).
    """

    name: str
    alpha: float

    def __post_init__(self) -> None:
        refuse_unknown([str(self.name)], RULES, "rule of speculative cascades")
        check_alpha(self.alpha)
        _, low, high = _RULES[self.name]
        if not low <= self.alpha <= high:
            raise ConfigError(f"alpha is {self.alpha}: rule {self.name} takes a number from {low:g} to {high:g}")

    @property
    def needs_draft(self) -> bool:
        """Whether it looks at the drafter's distribution."""
        return self.name not in TARGET_RULES

    def keeps(self, draft_gate: torch.Tensor, target_gate: torch.Tensor, variation: float) -> torch.Tensor:
        """Which drafted tokens stand, bool [vocab], by the probabilities [vocab] at temperature 1 and the total
        variation between the distributions that are drawn from."""
        kept, _, _ = _RULES[self.name]
        return kept(draft_gate, target_gate, variation, self.alpha) & (target_gate > 0.0)

    def output_probs(
        self,
        draft_probs: torch.Tensor,
        target_probs: torch.Tensor,
        draft_gate: torch.Tensor,
        target_gate: torch.Tensor,
    ) -> torch.Tensor:
        """What the output is to follow, [vocab]: from the two distributions that are drawn from, and the same two at
        temperature 1."""
        variation = 0.5 * float((draft_probs - target_probs).abs().sum())
        kept = draft_probs * self.keeps(draft_gate, target_gate, variation)
        return kept + (1.0 - kept.sum()).clamp(min=0.0) * target_probs


def check_alpha(value: object) -> None:
    """ConfigError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"alpha is {value!r}: give a number, the lenience of the cascade's rule")
