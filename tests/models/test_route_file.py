"""Routes by name and in files: what is written is read, and each kind of damage or misfit is one clear error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slimtier.errors import ConfigError, InputError
from slimtier.models.route_file import (
    ModelIdentity,
    RouteFile,
    check_route,
    default_route,
    find_route,
    uniform_skip,
)
from slimtier.types import Route
from tests.stubs import StubTarget

MIXED = Route(("full", "skip", "q4", "q8"), ("full", "q4", "skip", "q8"), "q8")


def a_file(target: StubTarget, route: Route = MIXED) -> RouteFile:
    return RouteFile(
        ModelIdentity.of(target),  # type: ignore[arg-type]
        route,
        found={"method": "dimr", "seed": 3},
        cost={"step": 0.4},
        divergence={"kl": 0.1},
        provenance={"slimtier": "0.1.0"},
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "route.json"
    a_file(StubTarget()).write(path)
    return path


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    return path


def test_what_is_written_is_read(stored: Path) -> None:
    target = StubTarget()
    assert RouteFile.read(stored) == a_file(target)
    assert find_route(str(stored), target) == (MIXED, a_file(target))
    assert find_route(stored, target)[0] == MIXED
    calibrated = replace(a_file(target), calibrated={"gate": {"accept": 0.9, "escalate": 0.4}})
    calibrated.write(stored)
    assert RouteFile.read(stored) == calibrated
    assert [one.name for one in stored.parent.iterdir()] == ["route.json"], "nothing is left beside it"


# Damage.

DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no model": (lambda v: v.pop("model"), "lacks 'model'"),
    "no route": (lambda v: v.pop("route"), "lacks 'route'"),
    "no attention": (lambda v: v["route"].pop("attention"), "lacks 'attention'"),
    "no head": (lambda v: v["route"].pop("head"), "lacks 'head'"),
    "a model's field missing": (lambda v: v["model"].pop("digest"), "digest"),
    "a model's field too many": (lambda v: v["model"].update(colour="red"), "colour"),
    "a model that is a text": (lambda v: v.update(model="stub"), "broken"),
    "a route that is a list": (lambda v: v.update(route=[1]), "broken"),
    "a route that is null": (lambda v: v.update(route=None), "broken"),
    "a text for a list": (lambda v: v["route"].update(mlp="skip"), "a sublayer is 's'"),
    "a number for a list": (lambda v: v["route"].update(mlp=4), "broken"),
    "an unknown action": (lambda v: v["route"]["mlp"].__setitem__(1, "q5"), "a sublayer is 'q5'"),
    "a null action": (lambda v: v["route"]["attention"].__setitem__(0, None), "a sublayer is None"),
    "a list for an action": (lambda v: v["route"]["attention"].__setitem__(0, ["q4"]), "a sublayer is"),
    "a null head": (lambda v: v["route"].update(head=None), "a sublayer is None"),
    "a skipped head": (lambda v: v["route"].update(head="skip"), "the head is skipped"),
    "an mlp missing": (lambda v: v["route"]["mlp"].pop(), "a sublayer is missing"),
    "a layer missing": (
        lambda v: [v["route"][name].pop() for name in ("attention", "mlp")],
        "3 layers of a model of 4",
    ),
    "an unknown part": (lambda v: v.update(extra={}), "extra"),
    "evidence that is a list": (lambda v: v.update(calibrated=[1]), "calibrated is"),
    "evidence that is null": (lambda v: v.update(cost=None), "cost is None"),
    "another format": (lambda v: v.update(slimtier_route=2), "no route file of format 1"),
    "no format": (lambda v: v.pop("slimtier_route"), "no route file of format 1"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_says_what_is_wrong(kind: str, stored: Path) -> None:
    change, words = DAMAGE[kind]
    with pytest.raises(InputError, match=words) as caught:
        RouteFile.read(edited(stored, change))
    message = str(caught.value)
    assert str(stored) in message
    assert "slimtier route" in message
    assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"7", b"null", b'"a"', b"\xff\xfe\x00", b"a: 1\n"])
def test_a_file_of_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.json (cannot be read as a route|is no route file)"):
        RouteFile.read(path)


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError, match="cannot be read as a route"):
            RouteFile.read(path)


# Whose it is.


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (StubTarget(num_layers=5), "num_layers 4"),
        (StubTarget(80), "hidden_size 96"),
    ],
)
def test_a_route_of_another_model_is_refused(other: StubTarget, words: str, stored: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        find_route(str(stored), other)
    assert "search one for this model" in str(caught.value)


def test_a_model_of_the_same_shape_and_other_weights_is_another(stored: Path) -> None:
    other = StubTarget()
    embedding = other.weight("embedding")
    embedding[3, 5] *= 2
    other.weight = lambda name: embedding  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="digest"):
        find_route(str(stored), other)
    embedding[3, 5] /= 2
    assert find_route(str(stored), other)[0] == MIXED


# By name.


@pytest.mark.parametrize("num_layers", range(1, 33))
def test_a_uniform_skip_keeps_the_ends_and_spreads_the_rest(num_layers: int) -> None:
    for ratio in (0.0, 0.1, 0.25, 0.45, 0.5, 0.75, 0.99):
        route = uniform_skip(num_layers, ratio)
        assert route.attention == route.mlp
        assert (len(route.attention), route.head) == (num_layers, "full")
        skipped = [layer for layer, action in enumerate(route.attention) if action == "skip"]
        inner = max(num_layers - 2, 0)
        assert len(skipped) == min(round(ratio * num_layers), inner)
        assert all(0 < layer < num_layers - 1 for layer in skipped)
        gaps = {right - left for left, right in itertools.pairwise(skipped)}
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_names() -> None:
    target = StubTarget()
    assert find_route("none", target) == (Route.full(4), None)
    assert find_route("q4", target) == (Route.at(4, "q4"), None)
    assert find_route("q8", target)[0].head == "q8"
    assert find_route("skip:0.5", target)[0] == Route.skipping(4, [1, 2])
    assert find_route("skip:0", target)[0] == Route.full(4)


@pytest.mark.parametrize(
    "name", ["q5", "", "Q4", "skip", "skip:", "skip:a", "skip:1", "skip:-0.1", "skip:nan", "none ", "/", 4]
)
def test_what_names_no_route_is_refused(name: Any) -> None:
    for call in (check_route, lambda text: find_route(text, StubTarget())):
        with pytest.raises(ConfigError, match="route is ") as caught:
            call(name)
        assert "\n" not in str(caught.value)


def test_only_the_cpu_kernels_have_low_precision(tmp_path: Path) -> None:
    target = StubTarget()
    path = tmp_path / "route.json"
    a_file(target).write(path)
    for runtime, words in (("hf", "on hf choose"), ("native", "on torch choose")):
        target.info = replace(target.info, exact=False, runtime=runtime)  # type: ignore[arg-type]
        for name in ("q4", "q8", str(path)):
            with pytest.raises(ConfigError, match=f"only the native CPU kernels have: {words}"):
                find_route(name, target)
        assert find_route("skip:0.5", target)[0] == Route.skipping(4, [1, 2])
        with pytest.raises(ConfigError, match=f"{runtime} has no kernels of low precision: add --route skip:RATIO"):
            default_route(target.info)


def test_the_default_route_is_cheaper_than_the_target() -> None:
    for precision in ("fp32", "bf16", "q8"):
        assert default_route(replace(StubTarget().info, precision=precision)) == "q4"
    with pytest.raises(ConfigError, match="the target is q4 already: add --route skip:RATIO or a file"):
        default_route(replace(StubTarget().info, precision="q4"))
