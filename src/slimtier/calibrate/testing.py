"""From p-values to what is certified, and how many prompts that takes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slimtier.calibrate.bounds import Bound, Losses, p_value

MOST_PROMPTS = 1_000_000


def certified(p_values: Iterable[float], delta: float) -> int:
    """How many settings are certified, from the first on, given their p-values in an order that was fixed before: all
    up to the first whose p-value exceeds delta. What comes after it is not asked for.

    With probability 1 - delta all of them are below the bound, however many there are (fixed-sequence testing; Maurer,
    Hothorn and Lehmacher 1995; Angelopoulos et al. 2021, Learn then test), so any may be chosen, by any
    rule.
    """
    count = 0
    for value in p_values:
        if value > delta:
            break
        count += 1
    return count


def hopeless(bound: Bound, losses: Losses, count: int, epsilon: float, delta: float) -> bool:
    """Whether losses of `count` prompts that begin with these would not be enough, did all others lose nothing."""
    return p_value(bound, filled(losses, count), epsilon) > delta


def filled(losses: Losses, count: int) -> np.ndarray:
    """The losses [count], those that are not known taken for 0."""
    return np.concatenate([np.asarray(losses, dtype=np.float64), np.zeros(count - len(losses))])


def prompts_needed(bound: Bound, losses: Losses, epsilon: float, delta: float) -> int | None:
    """About how many prompts would certify a setting that goes on losing like this: the losses repeated. None if no
    number would. Losses [0.0]: the fewest with which anything can be certified."""
    given = np.asarray(losses, dtype=np.float64)
    if float(given.mean()) >= epsilon:
        return None

    def enough(count: int) -> bool:
        return p_value(bound, np.resize(given, count), epsilon) <= delta

    few, many = 0, len(given)
    while not enough(many):
        few, many = many, 2 * many
        if many > MOST_PROMPTS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many
