"""Medians, bootstrap intervals, looped text and Markdown cells."""

from __future__ import annotations

import numpy as np
import pytest

from slimtier.bench.statistics import bootstrap_ratio, loop_share, markdown_table, median, ratio_text


def test_loop_share_counts_the_tokens_of_repeated_eight_grams():
    assert loop_share(list(range(1, 9)) * 3) == 16 / 24
    assert loop_share(list(range(24))) == 0.0
    assert loop_share([]) == 0.0
    assert loop_share([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]) == 0.0  # a repeated seven-gram is no loop
    assert loop_share([9] * 10) == 0.9  # the second eight-gram covers all but the first token
    assert loop_share([1, 2, 9, 1, 2, 8, 1, 2], size=2) == 4 / 8


def test_bootstrap_ratio_is_paired_and_leaves_out_what_is_missing():
    below = [1.0, 10.0, 100.0, 1000.0, 5.0]
    assert bootstrap_ratio([2 * value for value in below], below) == (2.0, 2.0, 2.0)
    assert bootstrap_ratio([2.0, None, 9.0], [1.0, 1.0, None]) == (2.0, 2.0, 2.0)
    assert bootstrap_ratio([None], [1.0]) is None
    above = list(np.random.default_rng(0).normal(3.0, 0.5, 40))
    ratio, low, high = bootstrap_ratio(above, [1.0] * 40, seed=1)
    assert ratio == pytest.approx(float(np.median(above)))
    assert 2.5 < low < ratio < high < 3.5
    assert bootstrap_ratio(above, [1.0] * 40, seed=1) == (ratio, low, high)
    with pytest.raises(ValueError, match="zip"):
        bootstrap_ratio([1.0], [1.0, 2.0])


def test_the_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        ratios = np.exp(rng.normal(0.0, 0.3, 25))
        _, low, high = bootstrap_ratio(ratios.tolist(), [1.0] * 25, draws=400)
        covered += low <= 1.0 <= high
    assert 0.88 <= covered / 200 <= 1.0


def test_tables_and_cells():
    table = markdown_table(["a", "b|"], [[1.23456, None], [1234.5, "x|y"]])
    assert table.splitlines() == ["| a | b| |", "| --- | --- |", "| 1.23 |  |", "| 1234 | x\\|y |"]
    assert ratio_text((1.5, 1.25, 1.754)) == "1.50× [1.25, 1.75]"
    assert ratio_text(None) == ""
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
