"""Whether a slim verifier pays: the formulas, and the measuring on a stub."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from slimtier.advise.tier_model import Inner, LossyBlock, StepTimes, expected_run, mean_run
from slimtier.advise.tiers import TierPlan, advise_tiers, usual_routes
from slimtier.advise.tiers_text import text_of
from slimtier.drafters.ngram import NgramDrafter
from slimtier.errors import ConfigError
from slimtier.loading import Loaded
from tests.stubs import StubTarget

FLAT = StepTimes({1: 1.0, 4: 1.0, 8: 1.0})


@pytest.mark.parametrize(("acceptance", "flush"), [(0.0, 3), (0.5, 4), (0.98, 11), (1.0, 5)])
def test_a_run_yields_what_a_walk_along_it_does(acceptance: float, flush: int) -> None:
    expected, reached = 0.0, 1.0
    for _ in range(flush + 1):  # the target's own token comes after those kept
        expected += reached
        reached *= acceptance
    assert expected_run(acceptance, flush) == pytest.approx(expected)


def test_steps_between_and_beyond_those_measured() -> None:
    steps = StepTimes({1: 2.0, 3: 4.0, 5: 10.0})
    assert [steps.at(tokens) for tokens in (1, 2, 3, 4, 6)] == [2.0, 3.0, 4.0, 7.0, 13.0]
    assert StepTimes({1: 2.0}).at(9) == 2.0


ONE_BY_ONE = {1: 1.0}


def test_the_best_flush_is_long_where_the_slim_verifier_is_right_and_short_where_it_is_not() -> None:
    assert Inner(1.0, 0.1, ONE_BY_ONE).best_flush(FLAT, 20) == 20
    assert Inner(0.3, 0.1, ONE_BY_ONE).best_flush(FLAT, 20) < 5
    rates = [Inner(0.9, 0.1, ONE_BY_ONE).rate(FLAT, flush) for flush in range(1, 21)]
    assert Inner(0.9, 0.1, ONE_BY_ONE).best_flush(FLAT, 20) == 1 + rates.index(max(rates))


def test_a_run_ends_with_the_round_that_reaches_the_flush() -> None:
    assert mean_run(ONE_BY_ONE, 7) == mean_run({}, 7) == 7.0
    assert mean_run({3: 5}, 7) == 9.0
    lengths, draw, runs = {1: 6, 2: 3, 5: 1}, Random(0), []
    for _ in range(20_000):
        run = 0
        while run < 14:
            run += draw.choices(list(lengths), list(lengths.values()))[0]
        runs.append(run)
    assert mean_run(lengths, 14) == pytest.approx(mean(runs), abs=0.05)


def test_lossy_tiers_pay_where_the_target_is_asked_seldom() -> None:
    for escalates, pays in ((0.05, True), (0.9, False)):
        cost, gain = LossyBlock(2.2, 2.0, escalates, 8.0).break_even(0.3, FLAT, 4.0)
        assert (cost < gain) is pays


def test_advice_on_a_stub() -> None:
    target = StubTarget(vocab_size=40, order=2, max_positions=512)
    loaded = Loaded(target, _Numbers())
    plan = TierPlan(max_new_tokens=24, prompts=2, repeats=1, longest=6)
    found = advise_tiers(loaded, NgramDrafter, 4, plan, ("none", "skip:0.5"))
    same, other = found.rows
    assert same.agreement == 1.0
    assert other.agreement < 1.0
    assert same.identical
    assert other.identical
    assert 1 <= same.flush <= 6
    assert "skip:0.5" in text_of(found)
    assert "recommended: " in text_of(found)
    assert usual_routes(target) == ("q8", "q4", "skip:0.1")


@pytest.mark.parametrize("setting", ["max_new_tokens", "prompts", "repeats", "longest"])
def test_a_plan_that_measures_nothing(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        TierPlan(**{setting: 0})


class _Numbers:
    """A tokenizer that needs no files."""

    has_chat_template = False
    eos_token_ids = ()

    def encode(self, text: str, **options: object) -> list[int]:
        return [ord(letter) % 40 for letter in text]

    def decode(self, token_ids: list[int], **options: object) -> str:
        return "x" * len(token_ids)
