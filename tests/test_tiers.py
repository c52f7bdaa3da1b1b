"""Tiers by name: what can be asked for, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slimtier.drafters.tiered import TieredDrafter
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.models.route_file import ModelIdentity, RouteFile
from slimtier.tiers import join
from slimtier.types import Route
from slimtier.verifiers.gate import Gate
from slimtier.verifiers.tiered import ObservingVerifier, TieredVerifier
from tests.stubs import StubTarget, mixed


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("slimtier.engine.load", loaded)


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"tiers": "exakt"}, "did you mean 'exact'"),
        ({"tiers": "zzz"}, "known: "),
        ({"route": "q4"}, "route q4 is used by no tiers: add --tiers"),
        ({"flush": 4}, "--tiers exact"),
        ({"gate": "default"}, "--tiers paper or --tiers observe"),
        ({"tiers": "exact", "gate": "default"}, "not used by tiers exact"),
        ({"tiers": "exact", "accept": 0.9}, "not used by tiers exact"),
        ({"tiers": "paper", "flush": 4}, "not used by tiers paper: choose --tiers exact"),
        ({"tiers": "calibrated", "accept": 0.5, "route": "q4"}, "not used by tiers calibrated"),
        ({"tiers": "exact", "verifier": "lenient", "lenience": 0.2}, "leave --verifier lenient out"),
        ({"tiers": "exact", "route": "q5"}, "route is 'q5', which is no file"),
        ({"tiers": "exact", "route": "q8,"}, "divided by commas"),
        ({"tiers": "exact", "route": "skip:1.5"}, "from 0 to below 1"),
        ({"tiers": "exact", "route": ["q8", "skip:x"]}, "from 0 to below 1"),
        ({"tiers": "paper", "route": "q8,q4"}, "take one route, and 2 are given"),
        ({"tiers": "observe", "route": ["q8", "q4"]}, "take one route, and 2 are given"),
        ({"tiers": "calibrated"}, "need a route file"),
        ({"tiers": "calibrated", "route": "q4"}, "need a route file"),
        ({"tiers": "calibrated", "route": ["skip:0.4"]}, "need a route file"),
        ({"tiers": "calibrated", "route": "none.json"}, "no file"),
        *[
            ({"tiers": "exact", "flush": bad}, "flush is")
            for bad in (0, -1, 1.5, "x", "", [], None, True, "4,4", [3, "a"])
        ],
        ({"tiers": "exact", "route": "q8,q4", "flush": "3,4,5"}, "or 2 of them, one for each route"),
        ({"tiers": "paper", "gate": "bold"}, "conservative, default, aggressive"),
        ({"tiers": "paper", "accept": 0.3}, "accept must be at least escalate"),
        ({"tiers": "observe", "escalate": "x"}, "escalate is 'x'"),
        ({"tiers": "observe", "margin": float("nan")}, "margin is nan"),
        ({"tiers": "paper", "literal": 1}, "literal is 1"),
        (
            {"tiers": "observe", "reread": 8},
            "'reread' is not used by tiers observe: choose --tiers paper",
        ),
        ({"tiers": "observe", "literal": True}, "'literal' is not used by tiers observe: choose --tiers paper"),
        ({"tiers": "paper", "drafter": "ngrm"}, "did you mean 'ngram'"),
        ({"tiers": "paper", "drafter": "none", "min_ngram": 2}, "--drafter"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Engine.from_pretrained("smollm2-135m", **choices)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    "choices",
    [
        {"tiers": "exact"},
        {"tiers": "exact", "route": "q8, q4", "flush": "11,5"},
        {"tiers": "exact", "route": ["q8", "q4"], "flush": [11, 5]},
        {"tiers": "exact", "route": "none", "flush": "3"},
        {"tiers": "paper", "gate": "aggressive", "margin": 0.5, "literal": True},
        {"tiers": "paper", "accept": 2, "escalate": 0},
        {"tiers": "observe", "route": "skip:0.45", "drafter": "layer_skip", "skip_layers": 3},
    ],
)
def test_what_can_be_is_loaded(choices: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="a model was loaded"):
        Engine.from_pretrained("smollm2-135m", **choices)


def test_joining() -> None:
    target = StubTarget()
    inner = mixed(target)
    joined = join(target, inner, 5, "exact", "none,skip:0.25,skip:0.5", {"flush": "8,6,4"})
    assert (joined.num_speculative_tokens, joined.verifier.name, joined.drafter.name) == (23, "lossless", "mixed")
    found: Any = joined.drafter
    for flush, drafts, route in ((8, 15, ()), (6, 9, (2,)), (4, 5, (1, 2))):
        assert isinstance(found, TieredDrafter)
        assert (found.flush, found.num_speculative_tokens) == (flush, drafts)
        assert found.verifier.target.route == Route.skipping(4, route)  # type: ignore[attr-defined]
        found = found.inner
    assert found is inner
    assert join(target, inner, 5, "exact", "none").num_speculative_tokens == 11 + 5
    for tiers, kind in (("paper", TieredVerifier), ("observe", ObservingVerifier)):
        joined = join(target, inner, 5, tiers, "skip:0.5", {"gate": "conservative", "margin": 0.5})
        assert isinstance(joined.verifier, kind)
        assert (joined.drafter, joined.num_speculative_tokens, joined.verifier.name) == (inner, 5, tiers)
        assert joined.verifier.gate == Gate(0.8, 0.6, 0.5)
        assert joined.verifier.lossless == (tiers == "observe")
        with pytest.raises(ConfigError, match="take one route"):
            join(target, inner, 5, tiers, "none,skip:0.5")


def test_what_a_slim_verifier_did_not_write_cannot_be_gone_on_from() -> None:
    target = StubTarget()
    with pytest.raises(ConfigError, match="the route skips attention: leave it out, or choose a route of low"):
        join(target, mixed(target), 5, "paper", "skip:0.5", {"reread": 0})
    for route in ("q4", "none"):
        verifier = join(target, mixed(target), 5, "paper", route, {"reread": 0}).verifier
        assert verifier.gate == Gate(reread=0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("routes", ["skip:0.5,none", "q4,q8", "skip:0.5,q4"])
def test_nested_routes_go_from_the_dearest_to_the_cheapest(routes: str) -> None:
    target = StubTarget()
    with pytest.raises(ConfigError, match="name the dearer one first"):
        join(target, mixed(target), 5, "exact", routes)


EVIDENCE = {
    "drafter": "mixed",
    "drafts": "mixed",
    "num_speculative_tokens": 5,
    "precision": "fp32",
    "runtime": "native",
    "stored": "",
    "gate": {"accept": 0.9, "escalate": 0.4},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"drafts": "another"}, "calibrated with drafts another, and this is mixed"),
        ({"drafter": "ngram"}, "calibrated with drafter ngram, and this is mixed"),
        ({"num_speculative_tokens": 7}, "calibrated with num_speculative_tokens 7, and this is 5"),
        ({"precision": "q8"}, "calibrated with precision q8, and this is fp32"),
        ({"runtime": "hf"}, "calibrated with runtime hf"),
        ({"stored": "q4"}, "calibrated with stored q4"),
        ({"gate": None}, "the calibrated gate is None"),
        ({"gate": {"acept": 1}}, "did you mean 'accept'"),
        ({"gate": {"accept": "x"}}, "the calibrated gate: accept is 'x'"),
        ({"gate": {"accept": 0.1}}, "accept must be at least escalate"),
    ],
)
def test_a_calibrated_gate_and_its_evidence(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    target = StubTarget()
    identity = ModelIdentity.of(target)  # type: ignore[arg-type]
    path = tmp_path / "route.json"
    file = RouteFile(identity, Route.skipping(4, [1, 2]), calibrated=EVIDENCE)
    file.write(path)
    joined = join(target, mixed(target), 5, "calibrated", path)
    assert isinstance(joined.verifier, TieredVerifier)
    assert (joined.verifier.name, joined.verifier.gate) == ("calibrated", Gate(0.9, 0.4))
    replace(file, calibrated={**EVIDENCE, **changed}).write(path)
    with pytest.raises(ConfigError, match=message):
        join(target, mixed(target), 5, "calibrated", str(path))
    replace(file, calibrated={}).write(path)
    with pytest.raises(ConfigError, match="the route is not calibrated"):
        join(target, mixed(target), 5, "calibrated", str(path))
    for tiers in ("paper", "observe", "exact"):
        assert join(target, mixed(target), 5, tiers, str(path)).drafter.name == "mixed"
