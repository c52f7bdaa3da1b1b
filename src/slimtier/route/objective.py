"""How far a slim verifier is from its target: pure functions of log-probabilities [T, vocab], a number a position.

Nothing here is changed in place, and every result is float32 [T].
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from slimtier.errors import ConfigError

_FEW = 16
Objective = Literal["r", "kl", "tv", "mismatch"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of a route from its target, means over positions. r: VIA-SD's cost; kl: KL(target ‖ slim), nats; tv: total
    variation; mismatch: the share of positions whose most probable token is another one (1 − SWIFT's matchness)."""

    r: float
    kl: float
    tv: float
    mismatch: float

    def to_dict(self) -> dict[str, float]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def mean(cls, parts: list[tuple[torch.Tensor, ...]]) -> Divergence:
        """Of what `divergences` gave for parts of a text."""
        return cls(*(float(torch.cat(each).double().mean()) for each in zip(*parts, strict=True)))


def check_thresholds(alpha: float, beta: float) -> None:
    """Raises ConfigError for an alpha or beta that has no logarithm."""
    if not 0.0 <= alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}: give a number from 0 to below 1")
    if not 0.0 < beta <= 1.0:
        raise ConfigError(f"beta is {beta}: give a number above 0 and at most 1")


def divergences(
    target: torch.Tensor, slim: torch.Tensor, alpha: float = 0.5, beta: float = 0.5
) -> tuple[torch.Tensor, ...]:
    """The fields of `Divergence`, each [T], from the log-probabilities of both: what the functions below give, with one
    pass over the vocabulary shared by all, a few positions at a time so that they stay in the processor's cache."""
    begins = range(0, len(target), _FEW)
    parts = [_few(target[begin : begin + _FEW], slim[begin : begin + _FEW], alpha, beta) for begin in begins]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _few(target: torch.Tensor, slim: torch.Tensor, alpha: float, beta: float) -> tuple[torch.Tensor, ...]:
    gap, target_probs, slim_probs = slim - target, target.exp(), slim.exp()
    from_target = -(gap * target_probs).sum(-1)
    total = (gap + math.log1p(-alpha)).relu_().mul_(slim_probs).sum(-1)
    total += gap.add_(math.log(beta)).relu_().mul_(target_probs).sum(-1)
    apart = slim_probs.sub_(target_probs).abs_().sum(-1) / 2
    return total, from_target.clamp_min_(0.0), apart, mismatch(target, slim)


def cost(of: torch.Tensor, under: torch.Tensor, alpha: float = 0.5, beta: float = 0.5) -> torch.Tensor:
    """VIA-SD's cost of `under` in the place of `of`, C(of ‖ under) (equation 11), with q = of and q' = under:

        Σ_v q'(v) · relu(log(1 − α) + log q'(v) − log q(v)) + Σ_v q(v) · relu(log β + log q'(v) − log q(v))

    So it counts where q' gives a token more than 1 / (1 − α), or 1 / β, times what q gives it; 0 for equal ones.
    """
    gap = under - of
    accepted, replaced = (gap + math.log1p(-alpha)).relu(), (gap + math.log(beta)).relu()
    return (under.exp() * accepted + of.exp() * replaced).sum(-1)


def kl(of: torch.Tensor, under: torch.Tensor) -> torch.Tensor:
    """KL(of ‖ under) in nats; never below 0."""
    return (of.exp() * (of - under)).sum(-1).clamp_min(0.0)


def total_variation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """½ Σ_v |one(v) − other(v)|."""
    return (one.exp() - other.exp()).abs().sum(-1) / 2


def mismatch(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """1 where the most probable tokens differ (the lowest id of a tie), else 0."""
    return (one.argmax(-1) != other.argmax(-1)).float()
