"""VIA-SD's gate: who decides each drafted token, by the rule as it is written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from slimtier.errors import ConfigError
from slimtier.types import Decider
from slimtier.verifiers.gate import PRESETS, Gate

INF, NAN = math.inf, math.nan
GATES = {
    **{name: Gate.preset(name) for name in PRESETS},
    "empty region B": Gate(0.5, 0.5),
    "all kept": Gate(0.0, 0.0),
    "only the best kept": Gate(1.0, 0.2),
    "slim alone": Gate(2.0, 0.0),
    "target alone": Gate(2.0, 1.5),
    "margin": Gate(margin=0.4),
    "nothing read anew": Gate(0.6, 0.4, margin=0.3, reread=0),
    "little read anew": Gate(0.6, 0.4, margin=0.3, reread=5),
    "all unsure": Gate(margin=INF),
    "its own best or none": Gate(1.0, 0.0, margin=0.4),
    "its own best or little read anew": Gate(2.0, 0.0, margin=0.4, reread=5),
}


def naive(gate: Gate, logits: list[float], drafted: int | None) -> Decider:
    """The rule in Python's numbers, on the probabilities; a token that was not drafted is the slim verifier's best."""
    total = sum(math.exp(one) for one in logits)
    probs = [math.exp(one) / total for one in logits]
    best, second = sorted(logits, reverse=True)[:2]
    if best - second < gate.margin:
        return "target"
    ratio = 1.0 if drafted is None else probs[drafted] / max(probs)
    if ratio < gate.escalate:
        return "target"
    return "drafter" if ratio >= gate.accept and drafted is not None else "slim"


@pytest.mark.parametrize("name", GATES)
def test_every_token_is_decided_as_the_rule_says(name: str) -> None:
    gate, seen = GATES[name], set()
    for seed in range(60):
        logits = 1.5 * torch.randn(7, generator=torch.Generator().manual_seed(seed))
        region = gate.region(logits).tolist()
        for drafted in (*range(7), None):
            decider = gate.decide(logits, drafted)
            assert decider == naive(gate, logits.tolist(), drafted), (seed, drafted)
            if gate.by_best_two:
                best, second = logits.topk(2).values
                assert gate.decide_by_best_two(best, second, drafted == int(logits.argmax())) == decider
            seen.add(decider)
            if drafted is not None:
                assert region[drafted] == (decider == "target")
    assert seen == {
        "empty region B": {"drafter", "slim", "target"},  # slim: where nothing is drafted
        "all kept": {"drafter", "slim"},
        "slim alone": {"slim"},
        "target alone": {"target"},
        "all unsure": {"target"},
        "its own best or little read anew": {"slim", "target"},
    }.get(name, {"drafter", "slim", "target"})


def test_the_papers_example() -> None:
    """The docstring's: .5 for the best token, and .3, .4 or .2 for the drafted one."""
    for chance, decider in ((0.3, "slim"), (0.4, "drafter"), (0.2, "target"), (0.5, "drafter")):
        probs = torch.tensor([0.5, chance, 0.5 - chance / 2, 0.5 - chance / 2])
        probs[2:] = probs[2:].clamp(max=0.1)
        assert Gate().decide(probs.log(), 1) == decider


@pytest.mark.parametrize("value", [0.5, 0.7, 0.3, 0.1, 1.0, 2.0**-20])
def test_the_thresholds_belong_to_the_side_above_and_the_region_agrees_to_the_last_bit(value: float) -> None:
    for steps in range(-12, 13):
        logit = torch.tensor(value).log()
        for _ in range(abs(steps)):
            logit = torch.nextafter(logit, torch.tensor(math.copysign(100.0, steps)))
        logits = torch.tensor([0.0, min(float(logit), 0.0), -1.0])
        ratio = float(logits[1].exp())
        for gate, above in ((Gate(value, value), "drafter"), (Gate(2.0, value), "slim")):
            decider = gate.decide(logits, 1)
            assert decider == (above if ratio >= value else "target")
            assert bool(gate.region(logits)[1]) == (decider == "target")


def test_banned_tokens() -> None:
    logits = torch.tensor([-INF, 2.0, -INF, 1.9])
    gate = Gate()
    assert [gate.decide(logits, token) for token in range(4)] == ["target", "drafter", "target", "drafter"]
    alone = torch.tensor([-INF, 2.0, -INF])
    assert Gate(margin=1e9).decide(alone, 1) == "drafter", "there is no second one to be unsure about"
    assert gate.decide(torch.full((3,), -INF), 1) == "target", "who then says that every token is banned"


def test_presets_are_the_papers_and_others_are_named() -> None:
    assert {name: (Gate.preset(name).accept, Gate.preset(name).escalate) for name in PRESETS} == {
        "conservative": (0.8, 0.6),
        "default": (0.7, 0.5),
        "aggressive": (0.6, 0.4),
    }
    assert Gate.preset("default") == Gate()
    with pytest.raises(ConfigError, match="conservative, default, aggressive"):
        Gate.preset("bold")


@pytest.mark.parametrize("name", ["accept", "escalate", "margin"])
@pytest.mark.parametrize("value", [-0.1, NAN, -INF, "0.5", None, True, [0.5]])
def test_values_that_are_no_threshold_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"gate's {name} is") as caught:
        Gate(**{"accept": 9.0, name: value})
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="literal is 'yes'"):
        Gate(literal="yes")  # type: ignore[arg-type]
    for reread in (-1, 1.5, True, "all"):
        with pytest.raises(ConfigError, match=f"reread is {reread!r}: give a whole number from 0, or leave it out"):
            Gate(reread=reread)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"accepts from 0\.4 and escalates below 0\.6"):
        Gate(0.4, 0.6)


def test_a_gate_says_what_it_is() -> None:
    assert str(Gate()) == "accept 0.7, escalate 0.5"
    assert str(Gate(0.8, 0.6, 0.25, True)) == "accept 0.8, escalate 0.6, margin 0.25, literal True"
    assert [str(Gate(1.0, 0.0, reread=count)) for count in (0, 9)] == ["accept 1.0, reread 0", "accept 1.0, reread 9"]
