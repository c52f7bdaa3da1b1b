"""Randomness that belongs to a request."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from slimtier.noise import Noise


def test_the_same_seed_gives_the_same_stream_whatever_other_requests_draw() -> None:
    alone, among_others, other = Noise(7, "a"), Noise(7, "a"), Noise(8, "a")
    drawn = []
    for _ in range(20):
        other.uniform()
        drawn.append(among_others.uniform())
    assert drawn == [alone.uniform() for _ in range(20)]


def test_seeds_streams_and_samples_of_a_request_are_all_different() -> None:
    noises = [
        Noise(seed, stream) for seed in (0, 1, -1, 2**64, 2**64 + 1, 10**50) for stream in ("verifier", "drafter")
    ]
    noises += [Noise.of(0, index, "verifier") for index in (1, 2, 3)]
    assert len({noise.uniform() for noise in noises}) == len(noises)


def test_an_unseeded_request_gets_a_new_seed_each_time_and_shares_it_by_fork() -> None:
    first, second = Noise.of(None), Noise.of(None)
    assert first.seed != second.seed
    assert torch.equal(first.gumbel(3, 8), first.fork("drafter").gumbel(3, 8))
    assert first.fork("drafter").uniform() != first.uniform()


def test_gumbel_depends_on_seed_and_position_alone() -> None:
    noise = Noise(5, "verifier")
    before = noise.gumbel(10, 64)
    noise.uniform()
    assert torch.equal(before, noise.gumbel(10, 64))
    assert torch.equal(before, Noise(5, "drafter").gumbel(10, 64))
    assert not torch.equal(before, noise.gumbel(11, 64))
    assert not torch.equal(before, Noise(6, "verifier").gumbel(10, 64))
    assert torch.equal(before[:40], noise.gumbel(10, 40)), "a smaller vocabulary has the same noise"


def test_uniforms_are_uniform() -> None:
    noise = Noise(1)
    draws = [noise.uniform() for _ in range(5000)]
    assert all(0.0 <= draw < 1.0 for draw in draws)
    assert stats.kstest(draws, "uniform").pvalue > 1e-3


def test_gumbel_noise_is_gumbel_and_finite() -> None:
    noise = Noise(1)
    draws = torch.cat([noise.gumbel(position, 50_000) for position in range(8)])
    assert bool(torch.isfinite(draws).all())
    assert stats.kstest(draws[:20_000].numpy(), "gumbel_r").pvalue > 1e-3
    # the tail decides between 50,000 tokens: P(g > x) = 1 - exp(-exp(-x))
    for mark in (8.0, 10.0):
        expected = 400_000 * -math.expm1(-math.exp(-mark))
        assert int((draws > mark).sum()) == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_neighbouring_positions_share_no_noise() -> None:
    noise = Noise(1)
    near = [set(noise.gumbel(position, 1000).tolist()) for position in (0, 1, 2**40)]
    assert len(set.union(*near)) > 2990
