"""From a model to a route file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slimtier.errors import ConfigError
from slimtier.loading import Loaded, RunOptions, load
from slimtier.models.route_file import RouteFile, find_route
from slimtier.route import run as run_module
from slimtier.route.calibration import read_prompts
from slimtier.route.cost import StepCost
from slimtier.route.plot import draw_geometry, draw_search, front
from slimtier.route.run import Outcome, search_route
from slimtier.route.settings import RoutePlan, read_plan
from slimtier.route.text import text_of
from slimtier.types import Route
from tests.route.planted import PlantedTarget

PLANTED = (3, 4, 9)
PROMPTS: Any = [[number, 2 * number, 3] for number in range(1, 9)]  # as token ids: there is no tokenizer
SMALL = {"positions": 12, "stretch": 4, "max_new_tokens": 6}
SAVED = {"attention:q4": 2.0, "attention:skip": 4.0, "mlp:q4": 3.0, "mlp:skip": 6.0, "head:q8": 1.0}


class Silent:
    """What a person would have been told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.moves: list[tuple[int, int, str | None]] = []

    def begin(self, what: str) -> None: ...

    def move(self, done: int, total: int, words: str | None = None) -> None:
        self.moves.append((done, total, words))

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stub's steps take no time: sublayers save what SAVED says of 100. Lists what was measured."""
    seen: list[str] = []

    def parts(target: Any, text: Any, actions: Any, head: Any, progress: Any) -> StepCost:
        seen.append("parts")
        return StepCost(100.0, SAVED)

    def seconds(target: Any, routes: Any, text: Any, repeats: int) -> list[float]:
        seen.append("whole")
        return [10.0, 9.0]

    monkeypatch.setattr(run_module, "measure_cost", parts)
    monkeypatch.setattr(run_module, "step_seconds", seconds)
    return seen


def plan_of(**given: Any) -> RoutePlan:
    return read_plan({**SMALL, **given})


def search(tmp_path: Path, live: Any = None, target: Any = None, **given: Any) -> Outcome:
    loaded = Loaded(target or PlantedTarget(PLANTED), None)
    url = f"sqlite:///{tmp_path / 'route.db'}"
    return search_route(loaded, plan_of(**given), PROMPTS, url, live or Silent())  # type: ignore[arg-type]


def test_what_comes_of_a_search(tmp_path: Path) -> None:
    outcome = search(tmp_path, ratio=0.25, trials=24, theta=4)
    file, target = outcome.file, PlantedTarget(PLANTED)
    assert {i for i, action in enumerate(file.route.sublayers) if action == "skip"} == set(PLANTED)
    assert file.cost == {"skipped": 3 / 16, "time_predicted": pytest.approx(0.84), "time_measured": 0.9}
    assert max(file.divergence.values()) < 1e-6
    assert file.found["trials"] == 24
    assert file.found["settings"]["ratio"] == 0.25
    assert file.found["baselines"].keys() == {"uniform", "first_n", "greedy_once"}
    assert file.found["baselines"]["greedy_once"]["evaluations"] == 13
    assert file.found["baselines"]["uniform"]["value"] > 0.01
    assert file.found["held_out"]["first_n"]["kl"] > 0.01
    assert file.found["random"]["trials"] == 18
    assert file.provenance["seed"] == 0
    file.write(tmp_path / "route.json")
    assert RouteFile.read(tmp_path / "route.json").route == file.route
    assert find_route(tmp_path / "route.json", target)[0] == file.route  # type: ignore[arg-type]


def test_a_baseline_that_is_better_is_what_is_written(tmp_path: Path) -> None:
    outcome = search(tmp_path, ratio=0.25, trials=2)
    assert outcome.file.found["method"] == "greedy_once"
    assert outcome.file.found["value"] < outcome.file.found["searched"]["value"]
    assert {i for i, action in enumerate(outcome.file.route.sublayers) if action == "skip"} == set(PLANTED)
    assert text_of(outcome).startswith("attention skip 2; MLP skip 1,4, by greedy_once: r ")


def test_a_search_that_is_done_is_not_done_again(tmp_path: Path, measured: list[str]) -> None:
    live = Silent()
    first = search(tmp_path, live, ratio=0.25, trials=6)
    assert live.said[0].startswith("12 positions of 3 answers; an evaluation takes ")
    assert "6 trials and 13 evaluations for the greedy baseline" in live.said[0]
    assert [one for one in live.moves if one[2]][-1][:2] == (6, 6)
    live, target = Silent(), PlantedTarget(PLANTED)
    second = search(tmp_path, live, target, ratio=0.25, trials=6)
    assert "0 trials (6 trials are there already)" in live.said[0]
    assert second.trials == first.trials
    assert measured.count("parts") == 1
    judged = sum(call == (4, 4, 4) for call in target.calls)
    assert judged <= 8  # the target's own, one to take the time, four for the table: none of 6 trials or 13 of greedy


def test_more_trials_go_on_with_the_same_study(tmp_path: Path) -> None:
    first = search(tmp_path, ratio=0.25, trials=3, greedy="none")
    more = search(tmp_path, ratio=0.25, trials=5, greedy="none")
    assert len(more.trials) == 5
    assert {one.levels for one in first.trials} <= {one.levels for one in more.trials}
    assert len(search(tmp_path, ratio=0.2, trials=1, greedy="none").trials) == 1  # another search


def test_a_stopped_search_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, calls = Silent(), iter(range(100))
    judge = run_module.Judge.__call__

    def stops(self: Any, route: Route) -> Any:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return judge(self, route)

    monkeypatch.setattr(run_module.Judge, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, live, trials=9, ratio=0.25, theta=0)
    assert live.said[-1].startswith("stopped with 2 trials in sqlite:///")
    assert live.said[-1].endswith("the same command goes on")
    monkeypatch.undo()


def test_a_budget_of_time_with_low_precision(tmp_path: Path) -> None:
    outcome = search(tmp_path, time=0.8, actions="skip,q4,full", head="q8", trials=12, greedy="none")
    route = outcome.file.route
    assert route.head == "q8"
    assert outcome.file.cost["time_predicted"] <= 0.8
    assert "q4" in route.sublayers
    assert {"search", "uniform", "first_n", "q4"} == outcome.measured.keys()
    assert outcome.measured["q4"]["time"] == pytest.approx(1 - (8 * 5 + 1) / 100)
    assert all(outcome.bench.cost.ratio(outcome.bench.space.route(one.levels)) <= 0.8 for one in outcome.trials)


def test_a_budget_of_time_that_cannot_be_met(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the budget is not met"):
        search(tmp_path, time=0.1)


def test_nothing_held_out(tmp_path: Path) -> None:
    outcome = search(tmp_path, ratio=0.25, trials=1, held_out_every=0, greedy="none")
    assert outcome.measured["search"]["held_out"] == {}
    assert " - " in text_of(outcome)


def test_the_pareto_front() -> None:
    points = [(0.9, 1.0), (0.8, 2.0), (0.85, 2.5), (0.9, 0.5), (0.95, 0.5), (0.99, 0.1)]
    assert front(points) == [(0.8, 2.0), (0.9, 0.5), (0.99, 0.1)]


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    outcome = search(tmp_path, ratio=0.25, trials=3, greedy="none")
    assert draw_search(outcome, tmp_path / "a.png") is None
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert [path.name for path in tmp_path.glob("*.part*")] == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for draw in (draw_search, draw_geometry):
        reason = draw(outcome, tmp_path / "b.png")  # type: ignore[operator]
        assert reason == "b.png is not drawn, matplotlib is not installed: pip install 'slimtier[route]'"


@pytest.mark.slow
def test_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of trials: what is planted by nature is that a slim verifier at q4 is all but the target."""
    monkeypatch.undo()
    plan = read_plan(
        {"time": 0.6, "actions": "skip,q4,full", "trials": 4, "theta": 2, "greedy": "none"}
        | {"positions": 60, "stretch": 12, "max_new_tokens": 24}
    )
    loaded = load("smollm2-135m", RunOptions(precision="fp32"))
    outcome = search_route(loaded, plan, read_prompts(None), f"sqlite:///{tmp_path / 'x.db'}", Silent())  # type: ignore[arg-type]
    outcome.file.write(tmp_path / "route.json")
    assert find_route(tmp_path / "route.json", loaded.target)[0] == outcome.file.route
    assert outcome.measured["q4"]["searched"]["kl"] < 0.02
    assert outcome.measured["q4"]["time"] < 0.6
    assert outcome.measured["first_n"]["searched"]["kl"] > 1.0
    assert len(outcome.trials) == 4
