"""What a draft head gains: SlimSpec's acceptance-cost model (arXiv 2605.10453, eq. 4).

A round drafts K tokens and verifies them with the one before:

    T_round = T_target(K + 1) + K · (T_body + T_head) + overhead
    κ = K · T_head of the full head ÷ the rest of the full head's round
    ν = T_head ÷ T_head of the full head
    ρ_TPS = ρ_τ · (1 + κ) / (1 + ν κ)

ρ_τ is the mean acceptance length ÷ that with the full head, ρ_TPS the tokens per second ÷ those with the full head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of what a round is made of, but for the head. target_s[n - 1]: a forward of n tokens and the argmax of
    each; body_s: a draft step; overhead_s: what a round has once, however long its draft; plain_overhead_s: the same
    of a step without a draft."""

    target_s: tuple[float, ...]
    body_s: float
    overhead_s: float = 0.0
    plain_overhead_s: float = 0.0

    @property
    def plain_s(self) -> float:
        """A step of plain decoding."""
        return self.target_s[0] + self.plain_overhead_s

    def rest_s(self, length: int) -> float:
        """A round with `length` drafted tokens without its heads."""
        return self.target_s[length] + length * self.body_s + self.overhead_s

    def round_s(self, length: int, head_s: float) -> float:
        """A round with `length` drafted tokens; 0 is plain decoding."""
        return self.rest_s(length) + length * head_s if length else self.plain_s

    def kappa(self, length: int, full_head_s: float) -> float:
        """κ: the time of the full head's calls ÷ the rest of the round."""
        return length * full_head_s / self.rest_s(length)


def gain(acceptance_ratio: float, kappa: float, nu: float) -> float:
    """ρ_TPS of a head from its ρ_τ.

    Example: ρ_τ .99, κ .25, ν .21: .99 · 1.25 / 1.0525 = 1.18.
    """
    return acceptance_ratio * (1.0 + kappa) / (1.0 + nu * kappa)


def break_even(kappa: float, nu: float) -> float:
    """The ρ_τ at which a head is as fast as the full one; above it, it is faster."""
    return (1.0 + nu * kappa) / (1.0 + kappa)


def expected_tokens(acceptances: Sequence[float], length: int) -> float:
    """Tokens that a round with `length` drafted tokens yields: 1 + Σ_k Π_{i ≤ k} a_i. acceptances[i]: how often draft
    token i + 1 is accepted if those before it were.

    Example: .5 .5, length 2: 1 + .5 + .25 = 1.75.
    """
    expected = reached = 1.0
    for acceptance in acceptances[:length]:
        reached *= acceptance
        expected += reached
    return expected


def speed_up(cost: RoundCost, head_s: float, acceptances: Sequence[float], length: int, ratio: float = 1.0) -> float:
    """Tokens per second ÷ those of plain decoding. `ratio`: ρ_τ of the head, where `acceptances` are another's."""
    if not length:
        return 1.0
    return ratio * expected_tokens(acceptances, length) * cost.plain_s / cost.round_s(length, head_s)


def best_length(cost: RoundCost, head_s: float, acceptances: Sequence[float], ratio: float = 1.0) -> int:
    """The number of drafted tokens with the greatest speed-up, the least among equals; 0: drafting does not pay.
    Lengths go as far as there are acceptances and target times."""
    longest = min(len(acceptances), len(cost.target_s) - 1)
    return max(range(longest + 1), key=lambda length: speed_up(cost, head_s, acceptances, length, ratio))
