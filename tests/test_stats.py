"""Counters: only what was kept counts, and everything adds up."""

from __future__ import annotations

import json

import pytest

from slimtier.stats import Counters, Stats
from slimtier.types import Verdict


def verdict(accepted: int, drafted: int) -> Verdict:
    tokens = tuple(range(accepted + 1))
    return Verdict(tokens, accepted, min(accepted + 1, drafted), ("drafter",) * accepted + ("target",))


def stats_of(counters: Counters, tokens: int) -> Stats:
    return Stats.of(counters, num_prompt_tokens=4, num_cached_tokens=0, num_output_tokens=tokens)


def test_accepted_counts_up_to_the_first_rejection() -> None:
    counters = Counters()
    for accepted in (1, 3, 0):  # masks [1,0,1], [1,1,1], [0,1,1]
        counters.record(3, verdict(accepted, 3), accepted + 1, 0.1, 0.2)
    stats = stats_of(counters, 7)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 9, 4)
    assert stats.accepted_per_position == (2, 1, 1)
    assert stats.num_examined_tokens == 2 + 3 + 1
    assert stats.mean_accepted_tokens == pytest.approx(4 / 3)
    assert stats.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert stats.acceptance_rate == pytest.approx(4 / 9)
    assert stats.rejection_rate == pytest.approx(2 / 6)
    assert stats.target_calls_per_token == pytest.approx(3 / 7)
    assert stats.time_split_s["draft"] == pytest.approx(0.3)
    assert stats.time_split_s["verify"] == pytest.approx(0.6)


def test_tokens_past_the_end_of_the_request_do_not_count() -> None:
    counters = Counters()
    counters.record(5, verdict(4, 5), 2, 0.0, 0.0)  # an EOS was the second of four accepted tokens
    stats = stats_of(counters, 2)
    assert (stats.num_accepted_tokens, stats.num_examined_tokens, stats.num_draft_tokens) == (2, 2, 5)
    assert stats.accepted_per_position == (1, 1, 0, 0, 0)


def test_rounds_without_a_draft_are_no_drafts() -> None:
    counters = Counters()
    for _ in range(3):
        counters.record(0, verdict(0, 0), 1, 0.0, 0.0)
    stats = stats_of(counters, 3)
    assert (stats.num_drafts, stats.num_target_calls, stats.mean_acceptance_length) == (0, 3, 1.0)
    assert stats.acceptance_rate is None
    assert stats.rejection_rate is None


@pytest.mark.parametrize("first_block", [1, 4])
def test_tokens_per_s_is_of_the_time_after_the_first_block(first_block: int) -> None:
    counters = Counters(
        started=1.0, first_token=3.0, last_token=5.0, first_block=first_block, draft_s=0.5, verify_s=1.5
    )
    stats = stats_of(counters, 20 + first_block)
    assert stats.tokens_per_s == 10.0
    assert stats.time_to_first_token_s == 2.0
    assert stats.end_to_end_tokens_per_s == (20 + first_block) / 4.0
    assert stats.time_split_s == {"draft": 0.5, "verify": 1.5, "other": 2.0}


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_speed_without_tokens_and_still_json(tokens: int) -> None:
    counters = Counters()
    if tokens:
        counters.record(0, verdict(0, 0), 1, 0.0, 0.0)
    found = json.loads(json.dumps(stats_of(counters, tokens).to_dict(), allow_nan=False))
    assert found["tokens_per_s"] is None
    assert found["total_s"] >= 0.0
    assert found["num_output_tokens"] == tokens
