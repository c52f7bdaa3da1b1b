"""The answers kept beside a calibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.calibrate.journal import Answer, Journal
from slimtier.errors import InputError

ANSWER = Answer(10, 2, 0.5, 3, 4, 3, 3, 5, 20.0, 10.0)
GATE: dict[str, Any] = {"accept": 1.0, "escalate": 0.0, "margin": 0.5}
CONDITIONS = {"model": "stub", "drafter": "ngram"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "route.json.rows.jsonl"


def test_an_answer_is_found_again(path: Path) -> None:
    Journal(path, CONDITIONS).add(GATE, [1, 2], ANSWER)
    again = Journal(path, CONDITIONS)
    assert again.find(GATE, [1, 2]) == ANSWER
    assert again.find(GATE, [1, 2, 3]) is None
    assert again.find({**GATE, "margin": 0.25}, [1, 2]) is None
    assert (ANSWER.speed_ratio, ANSWER.decided("slim")) == (2.0, 4)


def test_answers_under_other_conditions_do_not_count(path: Path) -> None:
    Journal(path, CONDITIONS).add(GATE, [1, 2], ANSWER)
    other = Journal(path, {**CONDITIONS, "drafter": "none"})
    assert other.find(GATE, [1, 2]) is None
    other.add(GATE, [5], ANSWER)
    assert Journal(path, CONDITIONS).find(GATE, [1, 2]) == ANSWER


def test_a_line_that_was_cut_off_is_written_anew(path: Path) -> None:
    journal = Journal(path, CONDITIONS)
    journal.add(GATE, [1], ANSWER)
    journal.add(GATE, [2], ANSWER)
    path.write_text(path.read_text()[:-9])
    again = Journal(path, CONDITIONS)
    assert again.find(GATE, [1]) == ANSWER
    assert again.find(GATE, [2]) is None
    again.add(GATE, [2], ANSWER)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


@pytest.mark.parametrize("line", ["[]", '{"prompt": "x"}', '{"run": 1, "gate": {}, "prompt": "x"}', "nonsense"])
def test_another_file_is_refused(path: Path, line: str) -> None:
    journal = Journal(path, CONDITIONS)
    journal.add(GATE, [1], ANSWER)
    path.write_text(path.read_text() + line.replace('"run": 1', f'"run": "{journal.run}"') + "\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match="line 2 of"):
        Journal(path, CONDITIONS)
    assert path.read_bytes() == before
