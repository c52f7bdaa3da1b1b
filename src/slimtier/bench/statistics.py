"""The statistics of a benchmark's tables: medians, bootstrap intervals, looped text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LOOP_NGRAM = 8
DRAWS = 2000


class Interval(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


def median(values: Sequence[float | None]) -> float | None:
    """The median of those that are there; None of none."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def bootstrap_ratio(
    numerators: Sequence[float | None], denominators: Sequence[float | None], seed: int = 0, draws: int = DRAWS
) -> Interval | None:
    """The median of the paired ratios numerators[i] / denominators[i], and the bounds of its 95 % percentile bootstrap
    interval over the pairs (Efron 1979). A pair that lacks either is left out; None when no pair is whole."""
    pairs = zip(numerators, denominators, strict=True)
    return _bootstrap([a / b for a, b in pairs if a is not None and b], np.median, seed, draws)


def bootstrap_difference(
    values: Sequence[float | None], others: Sequence[float | None], seed: int = 0, draws: int = DRAWS
) -> Interval | None:
    """The mean of the paired differences values[i] - others[i], with its interval as above. The mean, because the
    median of differences between scores of 0 and 1 is 0 whenever most agree."""
    pairs = zip(values, others, strict=True)
    return _bootstrap([a - b for a, b in pairs if a is not None and b is not None], np.mean, seed, draws)


def _bootstrap(values: Sequence[float], middle: Callable[..., Any], seed: int, draws: int) -> Interval | None:
    if not values:
        return None
    sample = np.array(values, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(sample), (draws, len(sample)))
    low, high = np.percentile(middle(sample[chosen], axis=1), [2.5, 97.5])
    return Interval(float(middle(sample)), float(low), float(high))


def loop_share(token_ids: Sequence[int], size: int = LOOP_NGRAM) -> float:
    """The share of output tokens that lie in looped text: those covered by an n-gram of `size` tokens that occurred
    before in the same output. 1 2 3 … 8 said three times over is 16 / 24; a text without repetition is 0."""
    seen: set[tuple[int, ...]] = set()
    looped = [False] * len(token_ids)
    for start in range(len(token_ids) - size + 1):
        ngram = tuple(token_ids[start : start + size])
        if ngram in seen:
            looped[start : start + size] = [True] * size
        seen.add(ngram)
    return sum(looped) / len(looped) if looped else 0.0


def first_difference(tokens: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Where they part; an answer that ends before the other does parts there. None: they are the same."""
    for position, (mine, other) in enumerate(zip(tokens, wanted, strict=False)):
        if mine != other:
            return position
    return None if len(tokens) == len(wanted) else min(len(tokens), len(wanted))


def speeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Median tokens a second, by system and batch."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row.get("tokens_per_s"):
            found.setdefault(row["system"], {}).setdefault(row["batch"], []).append(row["tokens_per_s"])
    return {name: {batch: median(given) or 0.0 for batch, given in mine.items()} for name, mine in found.items()}


def ratio_text(ratio: Sequence[float] | None) -> str:
    """A ratio with its bounds as a cell; nothing for None."""
    return "" if ratio is None else f"{ratio[0]:.2f}× [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def speeds_table(known: Mapping[str, Mapping[int, float]]) -> str:
    """What `speeds` gives as a Markdown table."""
    sizes = sorted({size for mine in known.values() for size in mine})
    rows = [[name, *(mine.get(size) for size in sizes)] for name, mine in known.items()]
    return markdown_table(["tokens/s at batch", *map(str, sizes)], rows)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; None is an empty cell, a float has three significant digits."""
    lines = [list(headers), ["---"] * len(headers), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
