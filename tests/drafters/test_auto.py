"""The cost-aware drafter: how it weighs chances against time, and what it may not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.base import DraftContext
from slimtier.drafters.cost import Beliefs, StepCost, best_plan, price_of
from slimtier.sampling import Noise
from slimtier.types import SamplingParams, Verdict
from tests.stubs import StubTarget


def context(tokens, key=0, **sampling):
    return DraftContext(key, tokens, 1, SamplingParams(**sampling), Noise(0, "drafter"))


def verdict(accepted, examined):
    return Verdict((1,) * (accepted + 1), accepted, examined, ("drafter",) * accepted + ("target",))


def test_best_length_is_the_best_of_all_lengths():
    assert best_plan([0.5, 0.5, 0.5], 9, 1).length == 2
    assert best_plan([], 1, 1).length == 0
    assert best_plan([0.9] * 8, 1, 0).length == 8  # further tokens are free
    assert best_plan([0.9] * 8, 0, 1).length == 0  # a step costs what its tokens cost: speculation cannot pay
    for chances in ([0.3, 0.9, 0.9, 0.9], [0.8, 0.1, 0.9], [0.05, 0.99]):
        for slope in (0.01, 0.1, 0.5):
            rates = []
            for length in range(len(chances) + 1):
                expected, reach = 1.0, 1.0
                for chance in chances[:length]:
                    reach *= chance
                    expected += reach
                rates.append(expected / (1 + slope * (1 + length)))
            assert rates[best_plan(chances, 1, slope).length] == pytest.approx(max(rates))


def test_cost_of_a_step_is_learned():
    cost = StepCost()
    for tokens in (1, 2, 4, 8) * 20:
        cost.record(tokens, 0.010 + 0.002 * tokens)
    assert cost.fixed() == pytest.approx(0.010, rel=0.15)
    assert cost.per_token() == pytest.approx(0.002, rel=0.15)
    cost.record(1, 10.0)  # the machine was busy for once
    assert cost.fixed() + cost.per_token() < 0.03


def test_steps_of_one_size_leave_the_prior_slope():
    cost = StepCost()
    for _ in range(50):
        cost.record(1, 0.010)
    assert cost.fixed() + cost.per_token() == pytest.approx(0.010, rel=1e-6)
    assert cost.per_token() == pytest.approx(0.0006, rel=0.01)


def test_a_batch_of_nearly_one_size_leaves_the_prior_slope():
    cost = StepCost()
    for tokens, seconds in ((64, 0.173), (64, 0.155), (64, 0.153), (61, 0.166)):  # noise alone would say: free
        cost.record(tokens, seconds, rows=64)
    assert 64 * cost.per_token() / (cost.fixed() + 64 * cost.per_token()) == pytest.approx(0.8, abs=0.03)
    for drafted in (0, 64, 128, 0, 192) * 10:
        cost.record(64 + drafted, 0.100 + 0.0004 * drafted, rows=64)
    assert 0.0004 < cost.per_token() < 0.0006  # learned all the same; the prior said 0.0012


def test_beliefs_follow_the_verdicts():
    beliefs = Beliefs()
    before = beliefs.chances(3, 2)
    for _ in range(100):
        beliefs.record(3, accepted=1, examined=2)
    first, second = beliefs.chances(3, 2)
    assert first > 0.9 > before[0]
    assert second < 0.1 < before[1]
    assert len(beliefs.chances(100, 5)) == 5  # longer than any match kept apart


def test_no_match_is_no_draft():
    assert AutoDrafter().propose([context([1, 2, 3, 4])], [5])[0].token_ids == ()


def test_it_stops_drafting_what_is_never_accepted_and_goes_on_where_all_is():
    tokens = [5, 6, 7, 8, 9, 10, 11, 12] * 3
    for accepted_share, expected in ((0.0, 0), (1.0, 10)):
        drafter = AutoDrafter()
        for _ in range(60):
            draft = drafter.propose([context(tokens)], [10])[0]
            drafter._asked -= 0.010 + 0.0005 * len(draft.token_ids)  # the time a step would take
            length = len(draft.token_ids)
            drafter.observe(
                [0], [verdict(length if accepted_share else 0, length if accepted_share else min(1, length))]
            )
        assert len(drafter.propose([context(tokens)], [10])[0].token_ids) == expected


def test_sampled_rows_decide_alike_whatever_the_clock_and_the_company():
    tokens = [5, 6, 7, 8, 9, 10, 11, 12] * 3
    lengths = []
    for delay, company in ((0.001, 0), (5.0, 3)):
        drafter = AutoDrafter()
        for _ in range(8):
            rows = [context(tokens, key=0, temperature=1.0)] + [context(tokens, key=1 + i) for i in range(company)]
            drafts = drafter.propose(rows, [10] * len(rows))
            drafter._asked -= delay * (1 + len(drafts[0].token_ids))
            drafter.observe(
                [row.key for row in rows], [verdict(min(1, len(d.token_ids)), min(2, len(d.token_ids))) for d in drafts]
            )
            lengths.append(len(drafts[0].token_ids))
    assert lengths[:8] == lengths[8:]


def test_reset_forgets():
    drafter = AutoDrafter()
    drafter.propose([context([1, 2, 1, 2, 1, 2], key=4, temperature=1.0)], [3])
    drafter.reset([4])
    assert not drafter._own
    assert not drafter._attempts


def test_under_a_lossy_verifier_a_row_decides_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("slimtier.drafters.auto.time.perf_counter", lambda: clock[0])
    tokens = [1, 2, 3, 4, 5, 1, 2, 3]
    fresh, taught = AutoDrafter(), AutoDrafter()
    for _ in range(40):  # another row's copies are never kept, and each token takes as long as a step
        (draft,) = taught.propose([replace(context(tokens), key=1)], [8])
        clock[0] += 1.0 + len(draft.token_ids)
        taught.observe([1], [Verdict((9,), 0, min(1, len(draft.token_ids)), ("target",))])
    steady, free = (replace(context(tokens), key=2, steady=steady) for steady in (True, False))
    assert taught.propose([steady], [8]) == fresh.propose([steady], [8])
    assert taught.propose([free], [8]) != fresh.propose([free], [8])


def test_a_token_costs_more_beside_a_cheap_step():
    info = StubTarget().info
    stored = {name: price_of(replace(info, precision="fp32", stored=name)) for name in ("", "f32", "q4", "q8")}
    assert stored == {"": "fp32", "f32": "fp32", "q4": "fp32 of codes", "q8": "fp32 of codes"}
    assert price_of(replace(info, precision="q4", stored="q4")) == "q4"
    for costs in ("_drawn", "_greedy"):
        prices = {}
        for name in ("fp32", "fp32 of codes", "q8", "q4"):
            found = getattr(AutoDrafter(precision=name), costs)
            assert found.fixed + found.per_token == pytest.approx(1.0)
            prices[name] = found.per_token + found.draft_per_token
        assert prices["fp32"] < prices["q8"] < prices["q4"]
        assert prices["fp32"] < prices["fp32 of codes"]
