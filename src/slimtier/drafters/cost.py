"""What a round is expected to bring and to take: the two sides of choosing a draft's length."""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR_SLOPE = 0.06  # one more token costs this share of a step, until measured
_FORGET = 0.97  # weight of the past at each new measurement
_LONGEST = 16  # matches longer than this are believed alike
# chance that a copied token is the target's, by how many tokens before it match: a start, soon outweighed
_PRIOR_CHANCE = (0.1, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.83, 0.86) + (0.9,) * (_LONGEST - 8)
_PRIOR_WEIGHT = 6.0


class StepCost:
    """Seconds of a verifying step as a + b · tokens, fitted to the steps seen (recent ones weigh more)."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # weight, Σn, Σn², Σs, Σns

    def record(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`; one that took three times the expected counts as three times."""
        if self._sums[0] > 4.0:
            seconds = min(seconds, 3.0 * (self.fixed() + self.per_token() * tokens))
        new = (1.0, tokens, tokens * tokens, seconds, tokens * seconds)
        self._sums = [_FORGET * old + add for old, add in zip(self._sums, new, strict=True)]

    def _fit(self) -> tuple[float, float]:
        weight, n, nn, s, ns = self._sums
        if weight == 0.0:
            return 1.0 - _PRIOR_SLOPE, _PRIOR_SLOPE
        # ridge towards the prior slope, so that steps of one size alone do not decide it
        mean_n, mean_s = n / weight, s / weight
        prior = _PRIOR_SLOPE * mean_s / (1.0 + _PRIOR_SLOPE * (mean_n - 1.0))
        spread, covariance = nn / weight - mean_n**2, ns / weight - mean_n * mean_s
        slope = max((covariance + 0.5 * prior) / (spread + 0.5), 0.0)
        return max(mean_s - slope * mean_n, 0.0), slope

    def fixed(self) -> float:
        """Seconds of a step whatever its tokens."""
        return self._fit()[0]

    def per_token(self) -> float:
        """Seconds of one more token."""
        return self._fit()[1]


class Beliefs:
    """How often a copied token was the target's, by the number of matching tokens before it."""

    def __init__(self) -> None:
        self._kept = [chance * _PRIOR_WEIGHT for chance in _PRIOR_CHANCE]
        self._seen = [_PRIOR_WEIGHT] * len(_PRIOR_CHANCE)

    def record(self, size: int, accepted: int, examined: int) -> None:
        """Of a copy after a match of `size` tokens, `examined` were looked at and the first `accepted` kept."""
        for place in range(examined):
            at = min(size + place, _LONGEST)
            self._seen[at] = 0.98 * self._seen[at] + 1.0
            self._kept[at] = 0.98 * self._kept[at] + (place < accepted)

    def chances(self, size: int, count: int) -> list[float]:
        """For each of `count` copied tokens, the chance that it is kept if those before it are."""
        places = [min(size + place, _LONGEST) for place in range(count)]
        return [self._kept[at] / self._seen[at] for at in places]


def best_length(chances: Sequence[float], fixed: float, per_token: float) -> int:
    """The draft length that maximises expected tokens ÷ time:
    (1 + Σᵢ Πⱼ≤ᵢ chanceⱼ) / (fixed + per_token · (1 + length)).

    Example: chances .5 .5 .5, fixed 9, per_token 1: 1/10, 1.5/11, 1.75/12, 1.875/13, so the best length is 2.
    """
    best, best_rate = 0, 1.0 / (fixed + per_token)
    expected, reach = 1.0, 1.0
    for length, chance in enumerate(chances, start=1):
        reach *= chance
        expected += reach
        rate = expected / (fixed + per_token * (1 + length))
        if rate > best_rate:
            best, best_rate = length, rate
    return best
