"""How many steps fit into a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.train_in_minutes import step_seconds, steps_that_fit


def test_the_seconds_of_steps_are_read_from_the_metrics(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "answer_tokens": 0, "validation": {}},
        {"step": 1, "answer_tokens": 100, "draft_steps": 1, "tokens_per_s": 50.0},
        {"step": 2, "answer_tokens": 160, "draft_steps": 1, "tokens_per_s": 60.0},
        {"step": 3, "answer_tokens": 260, "draft_steps": 3, "tokens_per_s": 25.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert step_seconds(tmp_path / "metrics.jsonl") == {1: [2.0, 1.0], 3: [4.0]}


def test_steps_fill_the_time_in_their_shares() -> None:
    assert steps_that_fit(60.0, [(1, 3.0), (3, 1.0)], {1: 1.0, 3: 3.0}) == 40
    with pytest.raises(SystemExit, match="more --minutes"):
        steps_that_fit(5.0, [(1, 1.0)], {1: 1.0})
