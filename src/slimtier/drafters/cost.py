"""What a round is expected to bring and to take: the two sides of choosing a draft's length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slimtier.models.base import TargetInfo

VERIFY_SLOPE = 0.06  # one more token costs this share of a verifying step, until measured
# Where nothing may be learned, for tokens are drawn: what one more token costs to verify, what a draft costs at all and
# by the token, in shares of a verifying step. Drawing from a large vocabulary costs the same beside a cheap step as
# beside a dear one.
DRAWN_SHARES = {"fp32 of codes": (0.17, 0.08, 0.08), "q8": (0.085, 0.08, 0.09), "q4": (0.14, 0.12, 0.145)}
DRAWN_SHARES_OTHERWISE = (0.04, 0.04, 0.05)
# The same at temperature 0 under a lossy verifier, which looks at the best two logits.
GREEDY_SHARES = {"fp32 of codes": (0.13, 0.0, 0.06), "q8": (0.12, 0.0, 0.05), "q4": (0.13, 0.0, 0.06)}
GREEDY_SHARES_OTHERWISE = (0.05, 0.0, 0.05)
DRAFT_SLOPE = 0.8  # the same of a drafter's call, which does little else
_FORGET = 0.97  # weight of the past at each new measurement
_LONGEST = 16  # matches and drafts longer than this are believed alike
# chance that a copied token is the target's, by how many tokens before it match: a start, soon outweighed
COPIED = (0.1, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.83, 0.86) + (0.9,) * (_LONGEST - 8)
# the same of a token that a network drafted, by its place in the draft
DRAFTED = (0.6, 0.5, 0.45) + (0.45,) * (_LONGEST - 2)
# the same where tokens are drawn at temperature 1: a likely token is often not the one drawn
COPIED_DRAWN = (0.05, 0.17, 0.37, 0.5, 0.6, 0.65, 0.72, 0.78) + (0.8,) * (_LONGEST - 7)
DRAFTED_DRAWN = (0.48,) + (0.5,) * _LONGEST
DRAWN_WEIGHT = 24.0  # in tokens: an answer's own are few, and some bad luck should not end its drafts
_PRIOR_WEIGHT = 6.0
_BUCKETS = 12


def price_of(info: TargetInfo) -> str:
    """Of the target itself in the tables above: codes are multiplied as floats where fp32 is asked of them."""
    return "fp32 of codes" if info.precision == "fp32" and info.stored in ("q8", "q4") else info.precision


class StepCost:
    """Seconds of a call as a + b · tokens, fitted to the calls seen (recent ones weigh more)."""

    def __init__(self, slope: float = VERIFY_SLOPE) -> None:
        """`slope`: b ÷ (a + b), until measured."""
        self._slope = slope
        self._sums = [0.0] * 6  # weight, Σn, Σn², Σs, Σns, Σrows²

    @property
    def is_measured(self) -> bool:
        return self._sums[0] > 0.0

    def record(self, tokens: int, seconds: float, rows: int = 1) -> None:
        """A call of `tokens` tokens in `rows` rows took `seconds`; one that took three times the expected counts as
        three times."""
        if self._sums[0] > 4.0:
            seconds = min(seconds, 3.0 * (self.fixed() + self.per_token() * tokens))
        new = (1.0, tokens, tokens * tokens, seconds, tokens * seconds, rows * rows)
        self._sums = [_FORGET * old + add for old, add in zip(self._sums, new, strict=True)]

    def _fit(self) -> tuple[float, float]:
        weight, n, nn, s, ns, squared_rows = self._sums
        if weight == 0.0:
            return 1.0 - self._slope, self._slope
        # ridge towards the prior slope, so that calls of nearly one size do not decide it: half a token of each row
        mean_n, mean_s = n / weight, s / weight
        prior = self._slope * mean_s / (1.0 + self._slope * (mean_n - 1.0))
        spread, covariance = nn / weight - mean_n**2, ns / weight - mean_n * mean_s
        ridge = 0.5 * squared_rows / weight
        slope = max((covariance + ridge * prior) / (spread + ridge), 0.0)
        return max(mean_s - slope * mean_n, 0.0), slope

    def fixed(self) -> float:
        """Seconds of a call whatever its tokens."""
        return self._fit()[0]

    def per_token(self) -> float:
        """Seconds of one more token."""
        return self._fit()[1]


class Beliefs:
    """How often a drafted token was the target's, by its place: tokens that match before a copied one, or the place in
    a draft."""

    def __init__(self, prior: Sequence[float] = COPIED, weight: float = _PRIOR_WEIGHT) -> None:
        """`weight`: as many tokens the prior is worth."""
        self._kept = [chance * weight for chance in prior]
        self._seen = [weight] * len(prior)

    def record(self, first: int, accepted: int, examined: int) -> None:
        """Of a draft whose first token stands at place `first`, `examined` were looked at and `accepted` kept."""
        for place in range(examined):
            self.expect(first + place, float(place < accepted))

    def expect(self, place: int, chance: float) -> None:
        """A token at `place` was kept with this chance: 0 or 1, or what another source says of one not looked at."""
        at = min(place, _LONGEST)
        self._seen[at] = 0.98 * self._seen[at] + 1.0
        self._kept[at] = 0.98 * self._kept[at] + chance

    def chances(self, first: int, count: int) -> list[float]:
        """For each of `count` tokens, the chance that it is kept if those before it are."""
        places = [min(first + place, _LONGEST) for place in range(count)]
        return [self._kept[at] / self._seen[at] for at in places]


class Calibration:
    """How often a token was the target's, by the confidence that the network had in it (0 … 1)."""

    def __init__(self) -> None:
        self._centres = [(bucket + 0.5) / _BUCKETS for bucket in range(_BUCKETS)]
        self._seen = [_PRIOR_WEIGHT] * _BUCKETS
        self._kept = [_PRIOR_WEIGHT * (0.15 + 0.8 * centre) for centre in self._centres]

    def record(self, confidences: Sequence[float], accepted: int, examined: int) -> None:
        """Of tokens drafted with these confidences, `examined` were looked at and the first `accepted` kept."""
        for place, confidence in enumerate(confidences[:examined]):
            at = self._bucket(confidence)
            self._seen[at] = 0.98 * self._seen[at] + 1.0
            self._kept[at] = 0.98 * self._kept[at] + (place < accepted)

    def chances(self, confidences: Sequence[float]) -> list[float]:
        """For each token, the chance that it is kept if those before it are."""
        return [self._kept[at] / self._seen[at] for at in map(self._bucket, confidences)]

    def product_of(self, chance: float) -> float:
        """The product of confidences that means this chance of being kept: chance ≈ product ^ power, the power fitted
        over what was seen."""
        rows = list(zip(self._seen, self._kept, self._centres, strict=True))
        chances = sum(seen * math.log((kept + 0.05) / (seen + 0.1)) for seen, kept, _ in rows)
        power = chances / sum(seen * math.log(centre) for seen, _, centre in rows)
        return float(chance ** (1.0 / min(max(power, 0.2), 3.0)))

    def _bucket(self, confidence: float) -> int:
        return min(int(confidence * _BUCKETS), _BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """A draft's length, and the tokens a second that are expected of a round with it."""

    length: int
    rate: float


def best_plan(chances: Sequence[float], fixed: float, per_token: float) -> Plan:
    """The length that maximises expected tokens ÷ time: (1 + Σᵢ Πⱼ≤ᵢ chanceⱼ) / (fixed + per_token · (1 + length)).

    Example: chances .5 .5 .5, fixed 9, per_token 1: 1/10, 1.5/11, 1.75/12, 1.875/13, so the best length is 2.
    """
    best = Plan(0, 1.0 / (fixed + per_token))
    expected, reach = 1.0, 1.0
    for length, chance in enumerate(chances, start=1):
        reach *= chance
        expected += reach
        rate = expected / (fixed + per_token * (1 + length))
        if rate > best.rate:
            best = Plan(length, rate)
    return best
