"""A capture directory is checked once, row by row, and read as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slimtier.errors import InputError, ModelFileError
from slimtier.train.shards import open_capture, runs
from tests.train.captures import Recipe, some_rows, write_capture


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture", Recipe(some_rows(7), shards=3))


def test_rows_are_read_as_written(capture: Path) -> None:
    opened = open_capture(capture)
    assert len(opened.rows) == 7
    assert not opened.dropped
    for place in opened.rows:
        row = opened.read(place)
        assert len(row.token_ids) == len(row.features) == place.end - place.start
        answered = [position for first, stop in row.segments for position in range(first, stop)]
        assert row.top_ids[:, 0].tolist() == row.token_ids[answered].tolist()  # as the writer made it
        assert row.top_logprobs.dtype == torch.float32
        assert torch.equal(opened.read_tokens(place), row.token_ids)
        assert place.labels == sum(position >= 2 for position in answered)


def test_runs_of_answers() -> None:
    assert runs(torch.tensor([True, True, False, True, False])) == ((0, 2), (3, 4))
    assert runs(torch.tensor([False, False])) == ()


def test_only_the_first_shards(capture: Path) -> None:
    assert len(open_capture(capture, only_first=1).shards) == 1


def test_a_shard_that_is_not_listed_is_not_there(capture: Path) -> None:
    lines = (capture / "shards.jsonl").read_text().splitlines(keepends=True)
    (capture / "shards.jsonl").write_text("".join(lines[:2]) + lines[2][:30])  # written while we look
    assert len(open_capture(capture).shards) == 2
    (capture / "shards.jsonl").write_text(lines[0][:30] + "\n" + lines[1])
    with pytest.raises(ModelFileError, match="line 1, is damaged"):
        open_capture(capture)


def test_rows_with_nan_are_dropped_and_counted(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "capture", Recipe(some_rows(5), nan_row=2))
    opened = open_capture(capture)
    assert len(opened.rows) == 4
    assert dict(opened.dropped) == {"with numbers that cannot be": 1}


def test_rows_without_an_answer_are_dropped(tmp_path: Path) -> None:
    opened = open_capture(write_capture(tmp_path / "capture", Recipe([[(4, 3)], [(6, 0)], [(0, 2)]])))
    assert len(opened.rows) == 1
    assert dict(opened.dropped) == {"without an answer to learn from": 2}


def test_no_usable_row_is_an_error(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "capture", Recipe([[(4, 3)]], nan_row=0))
    with pytest.raises(InputError, match=r"no usable row .1 with numbers that cannot be.: capture more"):
        open_capture(capture)
    (capture / "shards.jsonl").unlink()
    with pytest.raises(InputError, match=r"no usable row .no complete shard"):
        open_capture(capture)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_shard_is_named(capture: Path, part: float) -> None:
    shard = capture / "shard-00001.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ModelFileError, match=r"shard-00001.safetensors is damaged"):
        open_capture(capture)
    shard.unlink()
    with pytest.raises(ModelFileError, match=r"cannot read .*shard-00001.safetensors"):
        open_capture(capture)


def test_a_shard_that_does_not_hold_together_is_named(capture: Path) -> None:
    manifest = json.loads((capture / "capture.json").read_text())
    (capture / "capture.json").write_text(json.dumps({**manifest, "layers": [0, 1]}))
    with pytest.raises(ModelFileError, match=r"shard-00000.safetensors does not hold together .features has shape"):
        open_capture(capture)


def test_what_is_no_capture_is_named(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read .*capture.json"):
        open_capture(tmp_path)
    (capture / "capture.json").write_text('{"format": 2}')
    with pytest.raises(ModelFileError, match="format 2, this slimtier reads 1"):
        open_capture(capture)
