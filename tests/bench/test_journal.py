"""The results file that a run goes on with."""

from __future__ import annotations

import json
from pathlib import Path

from slimtier.bench.journal import Journal

RUN = {"model": "stub"}
ANSWER = {"system": "a", "control": False, "task": "t", "item": "1", "repeat": 0}


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_what_follows_from_the_answers_is_written_anew_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Journal(path, RUN, {}) as journal:
        journal.write("answer", **ANSWER)
        for kind in ("exactness", "draws", "score", "schedule"):
            journal.write(kind, told=1)
    with Journal(path, RUN, {}) as journal:
        assert len(journal.answers) == 1
        journal.write("score", told=2)
        journal.write("end", seconds=1.0)
    assert kinds(path) == ["provenance", "run", "answer", "provenance", "score", "end"]
    with Journal(path, RUN, {}) as journal:
        assert journal.complete
    assert kinds(path)[-2:] == ["score", "end"]


def test_a_line_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Journal(path, RUN, {}) as journal:
        journal.write("answer", **ANSWER)
    with path.open("a") as file:
        file.write('{"kind": "answer", "sys')
    with Journal(path, RUN, {}) as journal:
        assert len(journal.answers) == 1
    assert kinds(path) == ["provenance", "run", "answer", "provenance"]
