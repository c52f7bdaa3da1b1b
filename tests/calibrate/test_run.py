"""A calibration of a stub from beginning to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.calibrate.bounds import p_value
from slimtier.calibrate.journal import Answer
from slimtier.calibrate.plan import Plan
from slimtier.calibrate.report import text_of
from slimtier.calibrate.run import ROWS, RouteTrials, choose_prompts, fastest
from slimtier.calibrate.trial import Trial, gate_values
from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.models.route_file import ModelIdentity, RouteFile, find_route
from slimtier.models.slim import SlimTarget
from slimtier.tiers import join
from slimtier.types import Route, SamplingParams
from slimtier.verifiers.gate import Gate
from slimtier.verifiers.tiered import TieredVerifier
from tests.calibrate.calibrating import GRID, PLAN, Fixed, prompts, run
from tests.stubs import StubTarget, speculate


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.with_name(out.name + ROWS).read_text().splitlines()]


def without_times(file: RouteFile) -> dict[str, Any]:
    """What does not depend on the clock."""
    calibrated = {name: value for name, value in file.calibrated.items() if name not in ("provenance", "speed_ratio")}
    return (
        calibrated
        | {"grid": [row | {"speed_ratio": 0} for row in calibrated["grid"]], "gate": 0}
        | dict.fromkeys(("p_value", "mean_loss"), 0)
    )


def naive_losses(gate: Gate, noise: float = 1.0, count: int = PLAN["max_new_tokens"]) -> list[float]:
    """The share of each answer that is not what the target says after the same words, without engine and caches."""
    target = StubTarget(24, route_noise=noise)
    slim = SlimTarget(target, Route.skipping(4, [1, 2]))
    losses = []
    for prompt in choose_prompts(prompts(), Loaded(target, None), Plan(**PLAN)):
        verifier = TieredVerifier(target, slim, gate)
        (output,), _ = speculate(
            verifier,
            target,
            Fixed(target).build(),
            [prompt],
            [SamplingParams()],
            count=count,
            num_speculative_tokens=3,
        )
        own = [int(target.logits_of([*prompt, *output[:place]]).argmax()) for place in range(count)]
        losses.append(sum(mine != its for mine, its in zip(output, own, strict=True)) / count)
    return losses


def test_the_file_holds_the_evidence(tmp_path: Path) -> None:
    out = tmp_path / "route.json"
    file, _ = run(out, full=True)
    found = file.calibrated
    gates = [Gate(1.0, 0.0, 2.0), Gate(1.0, 0.0, 1.0), Gate(1.0, 0.0, 0.0), Gate(0.2, 0.0, 0.0)]
    names = [str(gate) for gate in gates]
    assert [row["name"] for row in found["grid"]] == [*names, "conservative", "default", "aggressive"]
    for row, gate in zip(found["grid"], gates, strict=False):
        losses = naive_losses(gate)
        assert row["mean_loss"] == pytest.approx(sum(losses) / 16)
        assert row["p_value"] == pytest.approx(p_value("betting", losses, 0.25))
        assert (row["prompts"], row["tokens"]) == (16, 16 * 9)
        assert sum(row["decided"].values()) == pytest.approx(1.0)
    # the fourth passes by itself, but comes after one that does not
    assert [row["p_value"] <= 0.05 for row in found["grid"][:4]] == [True, True, False, True]
    assert [row["certified"] for row in found["grid"]] == [True, True, False, False, False, False, False]
    assert [row["prompts"] for row in found["grid"][4:]] == [2, 2, 2]
    chosen = next(row for row in found["grid"] if row["gate"] == found["gate"])
    assert chosen["certified"]
    assert chosen["speed_ratio"] == max(row["speed_ratio"] for row in found["grid"] if row["certified"])
    assert {name: found[name] for name in ("epsilon", "delta", "bound", "drafter", "precision", "runtime")} == {
        "epsilon": 0.25,
        "delta": 0.05,
        "bound": "betting",
        "drafter": "fixed",
        "precision": "fp32",
        "runtime": "native",
    }
    assert (found["prompts"], found["num_speculative_tokens"], found["temperature"]) == (16, 3, 0)
    assert (file.found, file.route) == ({"named": "skip:0.5"}, Route.skipping(4, [1, 2]))
    assert found["provenance"]["seed"] == 0


def test_the_file_decodes_as_calibrated(tmp_path: Path) -> None:
    out = tmp_path / "route.json"
    file, target = run(out)
    assert RouteFile.read(out) == file
    drafter = Fixed(target).build()
    joined = join(target, drafter, 3, "calibrated", str(out))
    assert isinstance(joined.verifier, TieredVerifier)
    assert joined.verifier.gate == Gate(**file.calibrated["gate"])
    with pytest.raises(ConfigError, match="calibrated with drafter fixed"):
        join(target, type(drafter)(drafter.script, "another"), 3, "calibrated", str(out))


def test_a_route_file_keeps_what_was_known_of_it(tmp_path: Path) -> None:
    target = StubTarget(24)
    known = RouteFile(ModelIdentity.of(target), Route.skipping(4, [2]), {"trials": 9}, {"step": 0.5}, {"kl": 0.1})
    known.write(tmp_path / "found.json")
    file, _ = run(tmp_path / "found.json", route=str(tmp_path / "found.json"))
    assert file == RouteFile.read(tmp_path / "found.json")
    assert (file.route, file.found, file.cost, file.divergence) == (
        known.route,
        known.found,
        known.cost,
        known.divergence,
    )
    assert file.calibrated["gate"]


def test_the_best_of_several_routes(tmp_path: Path) -> None:
    out = tmp_path / "route.json"
    file, _ = run(out, route="skip:0.5,skip:0.25", prompts=16, timed=2, full=True)
    grid, found = file.calibrated["grid"], file.calibrated
    routes = list(dict.fromkeys(row["route"] for row in grid))
    assert routes == ["skip:0.5", "skip:0.25"]
    certified = [row for row in grid if row["certified"]]
    assert {row["route"] for row in certified} == set(routes)
    assert all(row["p_value"] <= found["delta"] / 2 for row in certified), "each has its part of delta"
    best = max(certified, key=lambda row: row["speed_ratio"])
    assert (found["route"], found["gate"], found["speed_ratio"]) == (best["route"], best["gate"], best["speed_ratio"])
    assert file.route == find_route(found["route"], StubTarget(24))[0]
    lines = text_of(file, out).splitlines()
    assert lines[1].startswith("skip:0.5: accept 1.0")
    assert any(f" on {best['route']}; mean divergence" in line for line in lines)
    answers = len(rows_of(out))
    assert run(out, route="skip:0.5,skip:0.25", prompts=16, timed=2, full=True)[0].calibrated["gate"] == found["gate"]
    assert len(rows_of(out)) == answers, "nothing was asked again"


def test_no_route_can_be_certified(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"route skip:0\.5: even the safest gate .* route skip:0\.25: even the safest gate"
    ):
        run(tmp_path / "route.json", route="skip:0.5,skip:0.25", noise=9.0, margins=(0.0,))


def test_it_ends_where_a_gate_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtier.calibrate.trial.LEAST_ASKED", 3)
    file, _ = run(tmp_path / "a.json", noise=4.0, margins=(9.0, 0.5, 0.0), accepts=())
    grid = file.calibrated["grid"]
    names = [str(gate) for gate in (Gate(1.0, 0.0, 9.0), Gate(1.0, 0.0, 0.5))]
    assert [row["name"] for row in grid if row["name"] not in ("conservative", "default", "aggressive")] == names
    assert [row["certified"] for row in grid[:2]] == [True, False]
    assert 3 <= grid[1]["prompts"] < 16  # nothing could have saved it
    whole, _ = run(tmp_path / "b.json", noise=4.0, margins=(9.0, 0.5, 0.0), accepts=(), full=True)
    assert [row["prompts"] for row in whole.calibrated["grid"][:3]] == [16, 16, 16]
    assert [row["certified"] for row in whole.calibrated["grid"]] == [True] + [False] * 5
    assert whole.calibrated["gate"] == file.calibrated["gate"]


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 20:
            raise KeyboardInterrupt

    out = tmp_path / "route.json"
    with pytest.raises(KeyboardInterrupt):
        run(out, progress=stop)
    assert seen[-1] == (20, 4 * 16 + 3 * 2)
    assert not out.exists()
    assert len(rows_of(out)) == 20
    before = rows_of(out)
    file, _ = run(out)
    assert rows_of(out)[:20] == before
    keys = [json.dumps([row["gate"], row["prompt"]]) for row in rows_of(out)]
    assert len(keys) == len(set(keys))
    whole, _ = run(tmp_path / "other.json")
    assert without_times(file) == without_times(whole)
    assert len(rows_of(out)) == len(rows_of(tmp_path / "other.json"))
    again, target = run(out)  # nothing is decoded
    assert target.calls == []
    assert again.calibrated["grid"] == file.calibrated["grid"]


def test_more_prompts_take_over_the_answers_to_fewer(tmp_path: Path) -> None:
    out = tmp_path / "route.json"
    run(out, prompts=12, margins=(2.0,), accepts=(), timed=0)
    run(out, prompts=16, margins=(2.0,), accepts=(), timed=0)
    assert len(rows_of(out)) == 16


def test_a_whole_answer_as_the_loss(tmp_path: Path) -> None:
    file, _ = run(tmp_path / "a.json", loss="any", bound="binomial", epsilon=0.5, full=True)
    gates = [Gate(1.0, 0.0, margin) for margin in GRID["margins"]]
    for row, gate in zip(file.calibrated["grid"], gates, strict=False):
        losses = [float(loss > 0) for loss in naive_losses(gate)]
        assert row["mean_loss"] == pytest.approx(sum(losses) / 16)
        assert row["p_value"] == pytest.approx(p_value("binomial", losses, 0.5))


def test_too_few_prompts_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"8 prompts cannot support a bound of 0.25 at confidence 0.95, even if no token"
    ):
        run(tmp_path / "route.json", asked=prompts(8))
    assert not list(tmp_path.iterdir())


def test_a_gate_that_differs_too_much_is_refused_with_what_would_do(tmp_path: Path) -> None:
    out = tmp_path / "route.json"
    with pytest.raises(InputError, match=r"no number of prompts certifies 0.25 at that mean"):
        run(out, noise=40.0, margins=(0.0,))
    with pytest.raises(InputError, match=r"about \d+ prompts would support 0.18 at that mean") as error:
        run(out, epsilon=0.18, margins=(0.5,))
    assert (
        "even the safest gate (accept 1.0, margin 0.5) has a mean divergence of 0.1042 on 16 prompts: p = 0.2"
        in str(error.value)
    )
    assert not out.exists()


def test_a_route_that_leaves_nothing_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="route none is the whole target"):
        run(tmp_path / "route.json", route="none")


def test_prompts_are_each_taken_once_and_not_too_long() -> None:
    loaded = Loaded(StubTarget(24, max_positions=20), None)
    asked: list[Any] = [[1, 2], [3], [1, 2], [4] * 12, [5] * 11, [6, 7]]
    plan = Plan(prompts=10, max_new_tokens=9)
    assert sorted(choose_prompts(asked, loaded, plan)) == [[1, 2], [3], [5] * 11, [6, 7]]
    assert sorted(choose_prompts(asked, loaded, Plan(max_prompt_tokens=1, max_new_tokens=9))) == [[3]]
    few = choose_prompts(asked, loaded, Plan(prompts=2, max_new_tokens=9))
    assert few == choose_prompts(asked, loaded, plan)[:2]
    one, two = (choose_prompts(prompts(), loaded, Plan(seed=seed, max_new_tokens=9)) for seed in (1, 2))
    assert one != two
    assert sorted(one) == sorted(two)
    with pytest.raises(InputError, match="no prompt has at most 1 tokens"):
        choose_prompts([[1, 2]], loaded, Plan(max_prompt_tokens=1, max_new_tokens=9))


def test_the_fastest_is_taken_and_the_safest_of_equals() -> None:
    def trial(name: str, speed: float | None) -> Trial:
        answer = Answer(4, 0, 0.0, 4, 0, 0, 4, 4, speed, None if speed is None else 2.0)
        return Trial(name, Gate(), (answer,), (0.0,), 0.01)

    def found(*trials: Trial) -> str:
        tested = RouteTrials("q4", Route.full(4), None, trials, len(trials), ())
        return fastest([(tested, one) for one in trials])[1].name

    assert found(trial("a", 3.0), trial("b", 5.0), trial("c", 4.0)) == "b"
    assert found(trial("a", None), trial("b", None)) == "a"
    slow = trial("a", 3.0)
    assert (slow.speed_ratio, slow.mean_loss) == (1.5, 0.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"prompts": 0}, "prompts is 0: give 1 or more"),
        ({"timed": -1}, "timed is -1"),
        ({"bound": "binomial"}, "add loss=any"),
        ({"margins": (0.5, 1.0)}, "the safest comes first"),
        ({"accepts": (0.5, 0.5)}, "the safest comes first"),
        ({"margins": (), "accepts": ()}, "both empty"),
        ({"margins": (-1.0,)}, "the gate's margin is -1.0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(**values)


def test_gates_that_ask_read_little_anew() -> None:
    gates = Plan(margins=(2.0, 0.0), accepts=(0.9,)).path(12)
    assert [gate.reread for gate in gates.values()] == [12, None, None], "the others do not ask"
    assert list(gates) == ["accept 1.0, margin 2.0, reread 12", "accept 1.0", "accept 0.9"]
    for gate in gates.values():
        assert Gate(**gate_values(gate)) == gate


def test_the_report(tmp_path: Path) -> None:
    file, _ = run(tmp_path / "route.json", full=True)
    text = text_of(file, tmp_path / "route.json")
    header, *lines = text.splitlines()
    assert header.split()[:3] == ["gate", "divergence", "p"]
    assert [line.endswith("certified") for line in lines[:7]] == [True] * 2 + [False] * 5
    chosen = Gate(**file.calibrated["gate"])
    assert f"chosen: {chosen} on skip:0.5; mean divergence at most 0.25 with confidence 0.95 (betting)" in text
    assert "--tiers calibrated --route" in text
    assert ("do not pay here" in text) == (file.calibrated["speed_ratio"] <= 1.0)


def test_the_report_without_speeds(tmp_path: Path) -> None:
    file, _ = run(tmp_path / "route.json", timed=0)
    assert "no prompt was timed, so the safest gate was taken" in text_of(file, tmp_path / "route.json")
    assert file.calibrated["gate"]["margin"] == 2.0
    assert [row["name"] for row in file.calibrated["grid"]][-1] not in ("conservative", "default", "aggressive")
