"""Where answers part, and what that is taken for."""

from __future__ import annotations

from typing import Any

import pytest

from slimtier.bench.asked import Asked
from slimtier.bench.config import read_config
from slimtier.bench.exactness import LIMIT, exactness_rows, judge, pairs, with_references
from slimtier.bench.statistics import first_difference
from slimtier.bench.systems import parse_system
from slimtier.bench.tasks.base import Item


def test_each_of_ours_is_compared_with_itself_and_float32_with_transformers() -> None:
    config = with_references(
        read_config(None, {"systems": [parse_system("slimtier:precision=q8"), parse_system("vllm")]})
    )
    names = [system.name for system in config.systems]
    assert names == ["slimtier q8", "vllm", "slimtier q8 plain", "slimtier fp32 plain", "transformers"]
    assert [(one.name, other.name) for one, other in pairs(config.systems)] == [
        ("slimtier q8", "slimtier q8 plain"),
        ("slimtier fp32 plain", "transformers"),
    ]
    assert with_references(config) == config


def test_where_two_answers_part() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 9, 3], [1, 2, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], []) is None


@pytest.mark.parametrize(
    ("gap", "own_gap", "difference", "verdict"),
    [
        (1e-4, 1e-4, 1e-4, "near-tie"),
        (3e-4, 1e-4, 1e-4, "defect"),  # more than the rounding explains
        (1e-4, 3e-4, 1e-4, "defect"),
        (1e-4, 1e-4, 2 * LIMIT, "defect"),  # the logits themselves are wrong
        (0.0, 0.0, 0.0, "near-tie"),  # an exact tie
        (1e-6, 1e-6, 0.0, "defect"),  # the same bits, and yet another token
    ],
)
def test_a_near_tie_is_what_rounding_explains(gap: float, own_gap: float, difference: float, verdict: str) -> None:
    assert judge(gap, own_gap, difference) == verdict


class FakeContestants:
    """Systems with the logits they are said to have."""

    def __init__(self, *systems: str, logits: dict[str, list[float]]) -> None:
        self.ready = [parse_system(text) for text in systems]
        self._logits = logits
        self.rows: list[list[int]] = []

    def logits(self, system: Any, ids: list[int], stepwise: bool) -> list[float]:
        self.rows.append(ids)
        return self._logits[system.name]


def rows(contestants: FakeContestants, tokens: dict[str, list[int]]) -> list[tuple[str, dict[str, Any]]]:
    asked = [Asked("own", Item("a", "math", ("x",)), (7, 8))]
    answers = {(name, False, "own", "a", 0): {"token_ids": given} for name, given in tokens.items()}
    return list(exactness_rows(contestants, asked, answers))  # type: ignore[arg-type]


def test_a_divergence_is_explained_by_the_logits_after_the_common_beginning() -> None:
    plain, fast = "slimtier:precision=fp32,drafter=none", "slimtier:precision=fp32"
    names = [parse_system(text).name for text in (plain, fast)]
    logits = {names[0]: [0.0, 1.0, 1.0 - 1e-5], names[1]: [0.0, 1.0 - 1e-5, 1.0]}
    contestants = FakeContestants(plain, fast, logits=logits)
    (kind, found), (last, counts) = rows(contestants, {names[0]: [5, 1, 0], names[1]: [5, 2, 0]})
    assert (kind, found["verdict"], found["position"], found["token"], found["wanted"]) == (
        "divergence",
        "near-tie",
        1,
        2,
        1,
    )
    assert found["gap"] == pytest.approx(1e-5)
    assert contestants.rows == [[7, 8, 5], [7, 8, 5]]
    assert (last, counts["near_ties"], counts["defects"], counts["compared"]) == ("exactness", 1, 0, 1)

    contestants = FakeContestants(plain, fast, logits={name: [0.0, 1.0, 0.5] for name in names})
    (_, found), (_, counts) = rows(contestants, {names[0]: [5, 1], names[1]: [5, 2]})
    assert (found["verdict"], counts["defects"]) == ("defect", 1)
    (_, found), _ = rows(contestants, {names[0]: [5, 1], names[1]: [5]})
    assert (found["verdict"], found["token"], found["gap"]) == ("defect", None, None)
    ((_, counts),) = rows(contestants, {names[0]: [5, 1], names[1]: [5, 1]})
    assert (counts["identical"], counts["defects"]) == (1, 0)


def test_what_may_change_the_output_is_no_defect() -> None:
    plain, lenient = "slimtier:drafter=none", "slimtier:verifier=lenient,lenience=0.3"
    names = [parse_system(text).name for text in (plain, lenient)]
    (_, found), (_, counts) = rows(FakeContestants(plain, lenient, logits={}), {names[0]: [1], names[1]: [2]})
    assert (found["verdict"], counts["lossy"], counts["defects"]) == ("lossy", 1, 0)
