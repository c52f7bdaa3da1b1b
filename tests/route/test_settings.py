"""Settings, read from one flat mapping."""

from __future__ import annotations

from typing import Any

import pytest

from slimtier.errors import ConfigError
from slimtier.models.base import TargetInfo
from slimtier.route.calibration import TextPlan
from slimtier.route.settings import DraftPlan, RoutePlan, SearchPlan, SpacePlan, read_flat, read_plan
from slimtier.route.space import Space
from tests.stubs import StubTarget


def info(**changes: Any) -> TargetInfo:
    from dataclasses import replace

    return replace(StubTarget(num_layers=8).info, **changes)


def test_names_tell_where_they_belong() -> None:
    plan = read_plan({"trials": 7, "ratio": 0.25, "stretch": 9, "actions": "q4, full"})
    assert plan == RoutePlan(
        TextPlan(stretch=9), SpacePlan(ratio=0.25, actions=("q4", "full")), SearchPlan(trials=7)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trails": 3}, "did you mean 'trials'"),
        ({"draft": "auto"}, "unknown setting 'draft'"),
        ({"trials": 0}, "trials is 0"),
        ({"trials": "many"}, "trials is 'many': give a whole number"),
        ({"ratio": 0.2, "time": 0.5}, "ratio and time are two budgets"),
        ({"ratio": 0.0}, "ratio is 0.0"),
        ({"time": 1.5}, "time is 1.5"),
        ({"keep": -1}, "keep is -1"),
        ({"head": "skip"}, "the head cannot be skipped"),
        ({"head": "q5"}, "head is 'q5': choose one of"),
        ({"actions": "skip,q4,full"}, "more than two actions need the budget time"),
        ({"actions": "q5,full"}, "actions holds 'q5'"),
        ({"actions": "full"}, "give two or more"),
        ({"theta": -1}, "theta is -1"),
        ({"swaps": 1.5}, "swaps is 1.5"),
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"sampler": "grid"}, "sampler is 'grid': choose one of gp, tpe, none"),
        ({"objective": "loss"}, "objective is 'loss'"),
        ({"greedy": True}, "greedy is True"),
        ({"held_out_every": 1}, "held_out_every is 1"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_plan(given)


def test_the_space_of_a_model() -> None:
    assert SpacePlan().space(info()) == Space(8)
    four = SpacePlan(time=0.5, actions=("skip", "q4", "q8", "full"), head="q8", granularity="layer", keep=2)
    assert four.space(info()) == Space(8, ("full", "q8", "q4", "skip"), "layer", 2, "q8")


@pytest.mark.parametrize("plan", [SpacePlan(actions=("q4", "full")), SpacePlan(head="q8")])
def test_low_precision_is_for_our_kernels(plan: SpacePlan) -> None:
    with pytest.raises(ConfigError, match="run on the native CPU kernels only"):
        plan.space(info(runtime="hf", exact=False))


def test_how_many_are_skipped() -> None:
    assert SpacePlan().count(56) == 25  # 0.45, as in the paper
    assert SpacePlan(ratio=0.1).count(56) == 6
    assert SpacePlan(ratio=0.01).count(12) == 1


def test_a_study_goes_on_with_more_trials_only() -> None:
    of = [read_plan(given).of_the_study for given in ({}, {"trials": 9, "greedy": "none"}, {"seed": 1}, {"ratio": 0.2})]
    assert of[0] == of[1]
    assert of[0] != of[2]
    assert of[0] != of[3]


def test_the_draft_of_an_analysis() -> None:
    text, draft = read_flat({"draft": "somewhere", "positions": 9, "beta": 0.3}, TextPlan, DraftPlan)
    assert (text.positions, draft.draft, draft.beta) == (9, "somewhere", 0.3)
    assert draft.named() == ("eagle3", "lossless", {"draft": "somewhere"})
    assert DraftPlan(draft_model="m").named() == ("draft_model", "lossless", {"draft_model": "m"})
    with pytest.raises(ConfigError, match="alpha is 1"):
        DraftPlan(alpha=1.0)
