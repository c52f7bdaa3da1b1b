"""Whole runs: they learn, they stop and go on to the same bits, and they refuse what cannot be."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.drafters.eagle.load import load_network, read_draft
from slimtier.errors import ConfigError, ModelFileError, VocabularyError
from slimtier.train.checkpoints import KEPT, newest_state
from slimtier.train.loop import Trainer
from slimtier.train.shards import RowPlace
from tests.train.captures import VOCAB, Recipe, some_rows, write_capture, write_target
from tests.train.training import cut_off, metrics, run, weights

HEADS = {
    "full": ("drafter.head=full",),
    "slim": (),
    "trimmed": ("drafter.head=trimmed", "drafter.size=40"),
    "routed": ("drafter.head=routed", "drafter.size=16"),
}


@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("kind", ["kl", "lk"])
def test_every_head_learns(head: str, kind: str, tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    pairs = [*HEADS[head], f"loss.kind={kind}", "optimisation.steps=60", "optimisation.lr=3e-2", "drafter.rank=16"]
    outcome = run(tiny_capture, tiny_target, tmp_path, *pairs, "run.validate_every=60", "run.checkpoint_every=60")
    assert outcome.finished
    first, last = (line["validation"] for line in metrics(tmp_path, "validation"))
    assert last["acceptance"][0] > first["acceptance"][0]
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 61))
    assert lines[-1]["acceptance"][0] > lines[0]["acceptance"][0] + 0.05
    files = read_draft(outcome.draft, 4)
    network = load_network(files, torch.zeros(VOCAB, files.config.hidden_size), 64)
    assert network.head.logits(torch.zeros(1, files.config.hidden_size)).shape == (1, VOCAB)  # type: ignore[operator]
    assert files.provenance["steps"] == 60


@pytest.mark.parametrize("pairs", [(), ("optimisation.optimiser=muon", "optimisation.ema=0.9")], ids=["adamw", "muon"])
def test_resuming_gives_the_same_bits(
    pairs: tuple[str, ...], tiny_capture: Path, tiny_target: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(tiny_capture, tiny_target, whole, *pairs)
    with cut_off(12):  # two steps after the last checkpoint
        run(tiny_capture, tiny_target, parts, *pairs)
    assert run(tiny_capture, tiny_target, parts, *pairs, resume=True).finished
    assert weights(parts) == weights(whole)
    assert metrics(parts) == metrics(whole)
    assert metrics(parts, "validation") == metrics(whole, "validation")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_the_state(
    number: int, tiny_capture: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.train_step

    def signalled(self: Trainer, batch: Any) -> dict[str, Any]:
        if self.step == 6:
            os.kill(os.getpid(), number)
        return step(self, batch)

    monkeypatch.setattr(Trainer, "train_step", signalled)
    outcome = run(tiny_capture, tiny_target, tmp_path)
    assert (outcome.done, outcome.finished) == (7, False)
    state = newest_state(tmp_path / "checkpoints", pytest.fail)
    assert state is not None
    assert state["step"] == 7
    assert (tmp_path / "draft").is_dir()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_damaged_state_gives_way_to_the_one_before(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=10")
    states = sorted((tmp_path / "checkpoints").glob("*.pt"))
    assert [path.name for path in states] == ["step-00000005.pt", "step-00000010.pt"]
    assert len(states) == KEPT
    content = states[1].read_bytes()
    for part in (0.1, 0.5, 0.99):
        states[1].write_bytes(content[: int(part * len(content))])
        warned: list[str] = []
        state = newest_state(tmp_path / "checkpoints", warned.append)
        assert state is not None
        assert state["step"] == 5
        assert "step-00000010.pt was cut off" in warned[0]
    states[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the right length
    states[0].unlink()
    with pytest.raises(ModelFileError, match=r"no state .* is whole"):
        newest_state(tmp_path / "checkpoints", warned.append)


def test_a_finished_run_is_left_alone(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=4")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=4", resume=True).finished
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == times


def test_shards_that_came_later_are_left_for_another_run(tiny_target: Path, tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "capture", Recipe(some_rows(40), shards=2))
    lines = (capture / "shards.jsonl").read_text()
    (capture / "shards.jsonl").write_text(lines.splitlines(keepends=True)[0])
    run(capture, tiny_target, tmp_path / "out", "optimisation.steps=5")
    (capture / "shards.jsonl").write_text(lines)
    outcome = run(capture, tiny_target, tmp_path / "out", "optimisation.steps=5", resume=True)
    assert outcome.rows < 21


def test_what_was_held_out_is_not_trained_on(
    tiny_capture: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[RowPlace] = set()
    batch = Trainer.batch

    def watched(self: Trainer, step: int) -> Any:
        seen.update(self.data.schedule.at(step))
        held.update(self.data.split.held_out)
        return batch(self, step)

    held: set[RowPlace] = set()
    monkeypatch.setattr(Trainer, "batch", watched)
    outcome = run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=0", "optimisation.epochs=1")
    assert held
    assert not {row.digest for row in seen} & {row.digest for row in held}
    assert len(seen) == outcome.rows == 60 - len(held)


def test_a_run_is_resumed_as_it_was_begun(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=4")
    with pytest.raises(ConfigError, match="holds a run already: go on with --resume"):
        run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=4")
    with pytest.raises(ConfigError, match=r"begun with optimisation.steps = 4, not 5"):
        run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=5", resume=True)
    assert run(tiny_capture, tiny_target, tmp_path, "optimisation.steps=4", "run.log_every=3", resume=True).finished


def test_another_model_is_refused(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other", vocab=VOCAB + 8)
    with pytest.raises(ConfigError, match=r"the capture is of tiny .vocabulary 64, hidden 32, 4 layers., .* has 72"):
        run(tiny_capture, other, tmp_path / "out")
    manifest = (tiny_capture / "capture.json").read_text()
    capture = write_capture(tmp_path / "capture", Recipe(some_rows(4)))
    (capture / "capture.json").write_text(manifest.replace('"tokenizer_sha256": null', '"tokenizer_sha256": "1"'))
    with pytest.raises(VocabularyError, match="another tokenizer"):
        run(capture, tiny_target, tmp_path / "out")


def test_going_on_from_a_draft(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    first = run(tiny_capture, tiny_target, tmp_path / "first", "optimisation.steps=30").draft
    begun = metrics(tmp_path / "first", "validation")
    run(tiny_capture, tiny_target, tmp_path / "same", "optimisation.steps=1", start=first)
    same = metrics(tmp_path / "same", "validation")
    assert same[0]["validation"]["acceptance"] == pytest.approx(begun[-1]["validation"]["acceptance"], abs=2e-3)
    for head in ("full", "trimmed", "routed"):
        pairs = (*HEADS[head], "optimisation.steps=1")
        other = run(tiny_capture, tiny_target, tmp_path / head, *pairs, start=first).draft
        assert read_draft(other).config.head.kind == head
    full = metrics(tmp_path / "full", "validation")[0]["validation"]  # of the same map: only its softness is fitted
    assert full["top1"] == pytest.approx(begun[-1]["validation"]["top1"], abs=1e-6)
    back = run(tiny_capture, tiny_target, tmp_path / "back", "optimisation.steps=1", start=tmp_path / "full" / "draft")
    slim = metrics(tmp_path / "back", "validation")[0]["validation"]
    assert slim["top1"] == pytest.approx(metrics(tmp_path / "full", "validation")[-1]["validation"]["top1"], abs=0.1)
    assert read_draft(back.draft).config.head.kind == "slim"


def test_a_draft_gets_another_layer(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    first = run(tiny_capture, tiny_target, tmp_path / "first", "optimisation.steps=30").draft
    shallow = metrics(tmp_path / "first", "validation")[-1]["validation"]
    deep = run(tiny_capture, tiny_target, tmp_path / "deep", "drafter.layers=2", start=first).draft
    checks = [line["validation"] for line in metrics(tmp_path / "deep", "validation")]
    assert checks[0]["acceptance"] == pytest.approx(shallow["acceptance"], abs=2e-3)  # it changes nothing at first
    files = read_draft(deep)
    assert files.config.num_layers == 2
    assert torch.from_numpy(files.tensors["layers.1.down_proj.weight"].dense()).abs().max() > 0  # and then it learns
    with pytest.raises(ConfigError, match="has 2 layers, the drafter to train 1: layers can be added, not left out"):
        run(tiny_capture, tiny_target, tmp_path / "again", start=deep)
