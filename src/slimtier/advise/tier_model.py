"""What tiers cost and bring: the break-even of a slim verifier, by DESIGN's formulas."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the target's pass over so many tokens and their argmax, measured at some counts."""

    seconds: Mapping[int, float]

    def at(self, tokens: float) -> float:
        """Between the counts measured by a straight line, beyond the last one by its last slope."""
        counts = sorted(self.seconds)
        if len(counts) == 1:
            return self.seconds[counts[0]]
        place = min(max(bisect_left(counts, tokens), 1), len(counts) - 1)
        low, high = counts[place - 1], counts[place]
        slope = (self.seconds[high] - self.seconds[low]) / (high - low)
        return self.seconds[low] + slope * (tokens - low)


def mean_run(round_lengths: Mapping[int, float], flush: int) -> float:
    """Tokens of a run that goes on, round by round, until `flush` are there: the last round may go beyond.
    `round_lengths`: how often a round brings so many tokens (1 or more), in any unit; empty: always one."""
    round_lengths = round_lengths or {1: 1.0}
    total = sum(round_lengths.values())
    runs = [0.0] * flush  # by the tokens that are there already
    for there in reversed(range(flush)):
        for length, often in round_lengths.items():
            end = there + length
            runs[there] += often / total * (end if end >= flush else runs[end])
    return runs[0]


def expected_run(acceptance: float, run: float) -> float:
    """Tokens that come of a run, the target's own included: (1 - a^(n+1)) / (1 - a)."""
    if acceptance >= 1.0:
        return run + 1.0
    return float((1.0 - acceptance ** (run + 1)) / (1.0 - acceptance))


def exact_rate(acceptance: float, inner_s: float, target: StepTimes, run: float) -> float:
    """Tokens a second of lossless tiers: a token of the slim verifier takes `inner_s`, n of them are looked at
    together: E_n / (n · inner + t_target(n + 1))."""
    return expected_run(acceptance, run) / (run * inner_s + target.at(run + 1))


@dataclass(frozen=True, slots=True)
class Inner:
    """Drafter and slim verifier as they decode: how often the target keeps a token of theirs, seconds that one takes,
    how often a round brings so many."""

    acceptance: float
    token_s: float
    round_lengths: Mapping[int, float]

    def rate(self, target: StepTimes, flush: int) -> float:
        """Tokens a second of lossless tiers, see `exact_rate`."""
        return exact_rate(self.acceptance, self.token_s, target, mean_run(self.round_lengths, flush))

    def best_flush(self, target: StepTimes, longest: int) -> int:
        """The flush length of the highest rate."""
        return max(range(1, longest + 1), key=lambda flush: self.rate(target, flush))


@dataclass(frozen=True, slots=True)
class LossyBlock:
    """A block of lossy tiers beside one of two tiers with the same drafter: tokens that each outputs, the chance that
    the block escalates, and the tokens that the target then has to catch up with, the block included."""

    tokens: float
    two_tier_tokens: float
    escalates: float
    catch_up: float

    def break_even(self, slim_s: float, target: StepTimes, drafted: float) -> tuple[float, float]:
        """The two sides of [t_slim(K+1) + P(escalates) · t_target(catch-up)] ÷ t_target(K+1) < E_tiers / E_two: lossy
        tiers pay where the first is smaller."""
        cost = (slim_s + self.escalates * target.at(self.catch_up)) / target.at(drafted + 1)
        return cost, self.tokens / self.two_tier_tokens
