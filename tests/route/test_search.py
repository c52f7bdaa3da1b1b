"""DIMR on a target whose redundant sublayers are known."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from slimtier.errors import ConfigError
from slimtier.route import search as search_module
from slimtier.route.objective import Divergence
from slimtier.route.search import Search
from slimtier.route.settings import SearchPlan
from slimtier.route.space import SkipBudget, Space
from slimtier.route.study import Store, Tried, study_name
from slimtier.types import Route
from tests.route.planted import PlantedTarget, judge_of

PLANTED = (3, 4, 9, 12)  # sublayers of 8 layers; the first and the last two are no units
SPACE = Space(8)
BUDGET = SkipBudget(len(PLANTED))


def planted_levels() -> tuple[int, ...]:
    return tuple(int(unit[0] in PLANTED) for unit in SPACE.units)


def hamming(route: Route) -> Divergence:
    """A judge that counts the sublayers skipped which are not planted, unlike ones a little unlike."""
    wrong = [i for i, action in enumerate(route.sublayers) if action == "skip" and i not in PLANTED]
    value = sum(1.0 + i / 100 for i in wrong)
    return Divergence(value, value / 2, value / 4, value / 8)


def search(
    store: Store | None, judge: Callable[[Route], Divergence] = hamming, **settings: Any
) -> Search:  # fmt: skip
    return Search(SPACE, BUDGET, SearchPlan(**settings), store, judge)  # type: ignore[arg-type]


def memory() -> Store:
    return Store("test", "sqlite:///:memory:")


class Kept:
    """A store of trials in a list."""

    def __init__(self) -> None:
        self.trials: list[Tried] = []

    def finished(self) -> list[Tried]:
        return list(self.trials)

    def trial(self, propose: Any, judge: Any, value: Any) -> None:
        levels, proposal = propose(len(self.trials) + 1)
        found = judge(levels)
        self.trials.append(Tried(len(self.trials), levels, found, proposal, value(found)))


def best_of(judge: Callable[[Route], Divergence] = hamming, **settings: Any) -> float:
    return search(Kept(), judge, **settings).run()[0].value  # type: ignore[arg-type]


def test_dimr_finds_what_is_planted_on_a_target() -> None:
    judge = judge_of(PlantedTarget(PLANTED), 2, 4)
    trials = search(Kept(), judge, trials=60, theta=3).run()  # type: ignore[arg-type]
    assert trials[0].levels == planted_levels()
    assert trials[0].value < 1e-6
    assert [one.value for one in trials] == sorted(one.value for one in trials)


def test_dimr_beats_random_search_of_as_many_trials() -> None:
    seeds = range(4)
    chance = fmean(best_of(trials=36, theta=0, seed=seed) for seed in seeds)
    dimr = fmean(best_of(trials=36, theta=6, seed=seed) for seed in seeds)
    assert dimr < chance - 0.5


def test_other_ways_to_propose_beat_it_too() -> None:
    seeds = range(4)
    chance = fmean(best_of(trials=36, theta=0, seed=seed) for seed in seeds)
    assert fmean(best_of(trials=36, theta=0, swaps=0.8, seed=seed) for seed in seeds) < chance - 0.5


def test_every_theta_th_proposal_is_bayesian() -> None:
    kept = Kept()
    search(kept, trials=10, theta=4, sampler="tpe").run()  # type: ignore[arg-type]
    assert [one.number + 1 for one in kept.trials if one.proposal == "bayesian"] == [4, 8]
    assert {one.proposal for one in kept.trials} == {"bayesian", "random"}


def test_the_sampler_sees_all_that_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def fake(observed: Sequence[Any], *rest: Any) -> list[float]:
        seen.append((list(observed), rest))
        return [1.0 - 0.01 * unit for unit in range(SPACE.size)]

    monkeypatch.setattr(search_module, "bayesian_scores", fake)
    kept = Kept()
    search(kept, trials=5, theta=5, seed=3).run()  # type: ignore[arg-type]
    observed, rest = seen[0]
    assert rest == ("gp", 3, 5)
    assert observed == [([float(level) for level in one.levels], one.value) for one in kept.trials[:4]]
    assert kept.trials[4].levels == (1, 1, 1, 1, *[0] * 8)


def test_a_bayesian_proposal_that_is_known_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [1.0 - 0.01 * unit for unit in range(SPACE.size)]
    monkeypatch.setattr(search_module, "bayesian_scores", lambda *args: same)
    kept = Kept()
    search(kept, trials=20, theta=1).run()  # type: ignore[arg-type]
    assert len({one.levels for one in kept.trials}) == 20
    assert kept.trials[1].proposal == "bayesian"


def test_a_swap_exchanges_one_unit_of_the_best() -> None:
    kept = Kept()
    search(kept, trials=25, theta=0, swaps=1.0).run()  # type: ignore[arg-type]
    for place, one in enumerate(kept.trials[1:8], 1):
        before = min(kept.trials[:place], key=lambda tried: tried.value).levels
        assert one.proposal == "swap"
        assert sum(a != b for a, b in zip(one.levels, before, strict=True)) == 2


@pytest.mark.parametrize("objective", ["r", "kl", "tv", "mismatch"])
def test_the_objective_is_what_is_made_small(objective: str) -> None:
    values = {"r": "kl", "kl": "tv", "tv": "mismatch", "mismatch": "r"}  # another one is always 0

    def judge(route: Route) -> Divergence:
        value = hamming(route).r
        return Divergence(**{name: value if name == objective else -value for name in values})

    trials = search(Kept(), judge, trials=10, objective=objective, theta=0).run()  # type: ignore[arg-type]
    assert trials[0].value == min(getattr(one.divergence, objective) for one in trials)


def test_the_same_seed_gives_the_same_trials() -> None:
    runs = []
    for seed in (0, 0, 1):
        kept = Kept()
        search(kept, trials=9, theta=4, swaps=0.3, seed=seed).run()  # type: ignore[arg-type]
        runs.append([(one.levels, one.proposal) for one in kept.trials])
    assert runs[0] == runs[1] != runs[2]


class Dies:
    """A judge that is killed at its n-th evaluation."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, route: Route) -> Divergence:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return hamming(route)


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with pytest.raises(KeyboardInterrupt):
        search(Store("one", url), Dies(5), trials=9, theta=0).run()
    assert len(Store("one", url).finished()) == 4
    calls: list[Route] = []

    def counted(route: Route) -> Divergence:
        calls.append(route)
        return hamming(route)

    told: list[tuple[int, int]] = []
    trials = search(Store("one", url), counted, trials=9, theta=0).run(
        lambda done, total, best: told.append((done, total))
    )
    assert (len(trials), len(calls)) == (9, 5)
    assert told == [(done, 9) for done in range(5, 10)]
    assert search(Store("one", url), Dies(1), trials=9, theta=0).run() == trials  # nothing left to do
    assert Store("another", url).finished() == []


def test_a_trial_that_dies_without_a_word_is_not_counted(tmp_path: Path) -> None:
    """A kill leaves it running for ever; its number is spent."""
    store = Store("one", f"sqlite:///{tmp_path / 'study.db'}")
    store.study.ask()
    trials = search(store, trials=3, theta=0).run()
    assert sorted(one.number for one in trials) == [1, 2, 3]


def test_what_is_known_is_not_evaluated_again() -> None:
    store, levels = memory(), planted_levels()
    calls: list[Route] = []

    def counted(levels: Any) -> Divergence:
        calls.append(levels)
        return hamming(SPACE.route(levels))

    assert store.evaluated(levels, lambda: counted(levels)).r == 0.0
    store.evaluated(levels, lambda: counted(levels))
    for _ in range(2):
        store.trial(lambda number: (levels, "random"), counted, lambda found: found.r)
    other = tuple(reversed(levels))
    for _ in range(2):
        store.trial(lambda number: (other, "random"), counted, lambda found: found.r)
    assert calls == [levels, other]
    assert [one.value for one in store.finished()] == [0.0, 0.0, *[hamming(SPACE.route(other)).r] * 2]
    assert [one.user_attrs["reused"] for one in store.study.trials] == [True, True, False, True]


def test_a_trial_keeps_all_that_was_found() -> None:
    store = memory()
    search(store, trials=2, theta=0).run()
    for one, kept in zip(store.finished(), store.study.trials, strict=True):
        assert kept.user_attrs["levels"] == "".join(map(str, one.levels))
        assert kept.user_attrs["proposal"] == one.proposal == "random"
        assert hamming(SPACE.route(one.levels)) == one.divergence
        assert one.divergence.r == one.value == kept.value


def test_several_workers_share_one_study(tmp_path: Path) -> None:
    """As processes do: a store each, on one file."""
    url, workers, wanted = f"sqlite:///{tmp_path / 'study.db'}", 3, 12
    made, together = [], threading.Barrier(workers)

    def work() -> None:
        together.wait()
        trials = search(Store("one", url), trials=wanted, theta=0).run()
        made.append(len(trials))

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = Store("one", url).finished()
    assert wanted <= len(trials) <= wanted + workers
    assert len(made) == workers
    assert len({one.levels for one in trials}) > wanted // 2


def test_the_step_cost_of_a_study_stays() -> None:
    store = memory()
    assert store.cost(lambda: {"whole_s": 1.0, "saved_s": {"mlp:skip": 0.5}})["whole_s"] == 1.0
    assert store.cost(lambda: {"whole_s": 9.0, "saved_s": {}}) == {"whole_s": 1.0, "saved_s": {"mlp:skip": 0.5}}


def test_the_name_of_a_study_is_its_settings() -> None:
    names = {study_name({"seed": seed, "actions": actions}) for seed in (0, 1) for actions in ((1, 2), (1,))}
    assert len(names) == 4
    assert study_name({"a": 1, "b": (2,)}) == study_name({"b": [2], "a": 1})


@pytest.mark.parametrize("url", ["nothing", "sqlite:////no/such/folder/x.db", "mysql://nobody@localhost/x"])
def test_a_storage_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Store("one", url)


def test_scores_are_not_those_of_a_neighbour() -> None:
    draws = [search_module.random_scores(3, seed, number) for seed in (0, 1) for number in (1, 2, 11)]
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert all(0.0 <= score <= 1.0 for draw in draws for score in draw)
    assert draws[0] == search_module.random_scores(3, 0, 1) != [random.random() for _ in range(3)]
