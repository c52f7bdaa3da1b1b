"""What a step takes, on a clock that the target moves itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slimtier.route import cost as cost_module
from slimtier.route.calibration import Text
from slimtier.route.cost import StepCost, measure_cost, skipped_share, step_seconds
from slimtier.types import Route
from tests.route.planted import PlantedTarget, texts_of

ATTENTION = {"full": 2.0, "q4": 1.0, "skip": 0.0}
MLP = {"full": 5.0, "q4": 2.0, "skip": 0.0}


class Clocked(PlantedTarget):
    """A sublayer takes what the tables say, a token more a tenth, the head 10 (4 at q8)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.routes: list[Route] = []

    def forward(self, tokens: Any, cache: Any, lengths: Any, *, route: Route | None = None, capture: Any = ()) -> Any:
        running = route or Route.full(8)
        self.routes.append(running)
        taken = sum(ATTENTION[one] for one in running.attention) + sum(MLP[one] for one in running.mlp)
        self.now += taken * (1.0 + 0.1 * (len(tokens) - 1))
        return super().forward(tokens, cache, lengths, route=route, capture=capture)

    def head(self, hidden: torch.Tensor, reduce: str = "logits", *, route: Route | None = None) -> Any:
        self.now += 4.0 if route is not None and route.head == "q8" else 10.0
        return super().head(hidden, reduce)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    made = Clocked()
    monkeypatch.setattr(cost_module, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def text(target: Clocked) -> Text:
    return texts_of(target, 1, 8)[0]


def whole(route: Route, tokens: int = 6) -> float:
    parts = sum(ATTENTION[one] for one in route.attention) + sum(MLP[one] for one in route.mlp)
    mean = sum(1.0 + 0.1 * (count - 1) for count in range(1, tokens + 1)) / tokens
    return parts * mean + (4.0 if route.head == "q8" else 10.0)


def test_what_is_saved_adds_up(target: Clocked) -> None:
    found = measure_cost(target, text(target), ("full", "q4", "skip"), "q8")  # type: ignore[arg-type]
    assert found.whole_s == pytest.approx(whole(Route.full(8)))
    assert set(found.saved_s) == {"attention:q4", "attention:skip", "mlp:q4", "mlp:skip", "head:q8"}
    route = Route(("full", "skip", "q4", *["full"] * 5), ("q4", "full", "skip", *["full"] * 5), "q8")
    assert found.ratio(route) == pytest.approx(whole(route) / whole(Route.full(8)))
    assert found.ratio(Route.full(8)) == 1.0
    ends = {(one.attention[place], one.mlp[place]) for one in target.routes for place in (0, -1)}
    assert ends == {("full", "full")}  # the outer two are never changed


def test_a_short_text_has_shorter_steps(target: Clocked) -> None:
    ids = text(target).token_ids[:4]
    (seconds,) = step_seconds(target, [Route.full(8)], Text(ids, 2, 4), 2)  # type: ignore[arg-type]
    assert seconds == pytest.approx(whole(Route.full(8), 3))


def test_routes_take_turns(target: Clocked) -> None:
    routes = [Route.full(8), Route.skipping(8, [2]), Route.skipping(8, [3])]
    told: list[tuple[int, int]] = []
    step_seconds(target, routes, text(target), 3, lambda done, total: told.append((done, total)))  # type: ignore[arg-type]
    steps = target.routes[-3 * 6 * 4 :]
    rounds = [steps[begin : begin + 3] for begin in range(0, len(steps), 3)]
    assert all(set(one) == set(routes) for one in rounds)
    assert {one[0] for one in rounds} == set(routes)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_one_slow_step_is_no_harm(target: Clocked) -> None:
    seen = iter([*[0.0] * 40, 1000.0, *[0.0] * 1000])
    run = target.forward

    def sometimes_slow(*args: Any, **options: Any) -> Any:
        target.now += next(seen)
        return run(*args, **options)

    target.forward = sometimes_slow  # type: ignore[method-assign]
    (seconds,) = step_seconds(target, [Route.full(8)], text(target), 7)  # type: ignore[arg-type]
    assert seconds == pytest.approx(whole(Route.full(8)))


def test_skipped_share() -> None:
    assert skipped_share(Route.skipping(8, [1, 2])) == 0.25
    assert skipped_share(Route(("skip", "q4"), ("full", "full"))) == 0.25


def test_to_dict_and_back() -> None:
    found = StepCost(0.5, {"mlp:skip": 0.01})
    assert StepCost(**found.to_dict()) == found
