"""A capture on disk: what it holds, how it goes on after a kill, what it refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slimtier import files
from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.train import capture as work
from slimtier.train import shard_writer
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.prompts import Conversation, PromptFile
from tests.train import dialogues

TEXTS = ("tell me", "the story of the rain", "a", "no more", "hear this", "rise")
PROMPTS = PromptFile(tuple(Conversation("s", (text,)) for text in TEXTS), {})
SETTINGS = AnswerSettings(
    layers=(0, 1, 3), top_n=4, max_new_tokens=20, max_prompt_tokens=60, max_positions=200, rows=3, drawn_every=4
)
TOKENS, BUDGET = 300, 10**8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return dialogues.loaded(tmp_path_factory.mktemp("tiny"))


@contextmanager
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", 20_000)
        yield


def run(model: Loaded, directory: Path, tokens: int = TOKENS, **changes: object) -> work.Captured:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    planned = work.Plan(tokens, 0, BUDGET)
    return work.capture(model, PROMPTS, directory, settings, planned)


def rows_of(directory: Path) -> dict[int, tuple[list[int], torch.Tensor, torch.Tensor]]:
    """number -> token ids, answer marks, features"""
    found = {}
    for line in (directory / "shards.jsonl").read_text().splitlines():
        shard = load_file(directory / json.loads(line)["name"])
        ends = shard["offsets"].tolist()
        for number, begin, end in zip(shard["numbers"].tolist(), ends[:-1], ends[1:], strict=True):
            assert number not in found
            parts = (shard[name][begin:end] for name in ("answer", "features"))
            found[number] = (shard["token_ids"][begin:end].tolist(), *parts)
    return found


def test_shards_are_listed_with_their_sums_and_hold_what_the_list_says(
    model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    with small_shards(monkeypatch):
        captured = run(model, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "shards.jsonl").read_text().splitlines()]
    assert len(lines) > 2
    for line in lines:
        content = (tmp_path / line["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == line["sha256"]
        shard = load_file(tmp_path / line["name"])
        assert line["answer_tokens"] == len(shard["top_ids"]) == int(shard["answer"].sum())
        assert line["positions"] == len(shard["token_ids"]) == len(shard["features"])
    assert captured.answer_tokens == sum(line["answer_tokens"] for line in lines) >= TOKENS
    sums = load_file(tmp_path / work.STATISTICS)
    hidden = model.target.info.hidden_size
    assert sums["xtx"].shape == (4 * hidden, 4 * hidden)
    labelled = sum(int(answer[2:].sum()) for _, answer, _ in rows_of(tmp_path).values())
    assert int(sums["count"]) == labelled


def test_a_capture_that_was_killed_goes_on_and_no_conversation_comes_twice(
    model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_shards(monkeypatch):
        run(model, tmp_path / "whole")
        calls = 0
        kept = shard_writer.ShardWriter.add

        def killed(self: shard_writer.ShardWriter, row: object) -> bool:
            nonlocal calls
            calls += 1
            if calls == 8:
                raise KeyboardInterrupt
            return kept(self, row)  # type: ignore[arg-type]

        monkeypatch.setattr(shard_writer.ShardWriter, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path / "cut")
        with (tmp_path / "cut" / "shards.jsonl").open("a") as lines:
            lines.write('{"name": "shard-0')  # the kill came in the middle of a line
        (tmp_path / "cut" / "shard-00099.part").write_bytes(b"half")
        run(model, tmp_path / "cut")
    whole, cut = rows_of(tmp_path / "whole"), rows_of(tmp_path / "cut")
    shared = set(whole) & set(cut)
    assert len(shared) >= min(len(whole), len(cut)) - SETTINGS.rows
    for number in shared:
        assert whole[number][0] == cut[number][0]
        assert torch.equal(whole[number][2], cut[number][2])


def test_a_finished_capture_is_left_as_it_is(model: Loaded, tmp_path: Path) -> None:
    first = run(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(model, tmp_path).answer_tokens == first.answer_tokens
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_settings_in_the_same_directory_are_refused(model: Loaded, tmp_path: Path) -> None:
    run(model, tmp_path, tokens=20)
    with pytest.raises(ConfigError, match="was captured with top_n 4, not 5"):
        run(model, tmp_path, top_n=5)


def test_the_size_is_told_and_the_budget_refused_before_the_start() -> None:
    planned = work.plan(SETTINGS, 64, 1000, BUDGET)
    assert 1000 * 2 * 3 * 64 < planned.bytes < 10_000_000
    with pytest.raises(ConfigError, match=r"ask for \d+ tokens or raise --disk-budget"):
        work.plan(SETTINGS, 64, 10**6, BUDGET)


def test_the_budget_ends_a_capture_that_turns_out_larger(
    model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_shards(monkeypatch):
        captured = work.capture(model, PROMPTS, tmp_path, SETTINGS, work.Plan(10**6, 0, 45_000))
    assert captured.full
    assert captured.bytes < 45_000 + 40_000


@pytest.mark.parametrize("last", range(1, 7))  # manifest, shard, its line, the sums, the next shard, its line
def test_a_full_disk_is_an_error_and_only_whole_shards_are_listed(
    last: int, model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    fsync = files.os.fsync

    def full(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if writes == last:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with small_shards(monkeypatch), pytest.raises(InputError, match="No space left"):
        run(model, tmp_path)
    list_of_shards = tmp_path / "shards.jsonl"
    lines = list_of_shards.read_text().splitlines() if list_of_shards.is_file() else []
    assert len(lines) == last // 3  # a line that could not be synced is there all the same: its shard is whole
    for line in map(json.loads, lines):
        content = (tmp_path / line["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == line["sha256"]


def test_no_usable_conversation_is_an_error(model: Loaded, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no conversation could be used"):
        run(model, tmp_path, max_prompt_tokens=1, drawn_every=0)
