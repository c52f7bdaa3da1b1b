"""Validation, held to a slot-by-slot count; and what is noted of a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from slimtier.train.journal import Journal, read_lines
from slimtier.train.metrics import validate
from slimtier.train.plot import draw
from slimtier.train.unroll import unroll
from tests.train.networks import network, whole_batch

STEPS = 3


@pytest.mark.parametrize("head", ["full", "slim", "trimmed", "routed"])
def test_validation_counts_slot_by_slot(head: str, tiny_capture: Path) -> None:
    net, batch = network(head), whole_batch(tiny_capture)
    with torch.no_grad():  # some slots must agree
        net.fc.weight.mul_(0.1)
    got = validate(net, [batch], STEPS)
    agreed: dict[int, list[float]] = {}
    accepted: dict[int, list[float]] = {}
    covered: list[float] = []
    with torch.no_grad():
        for step, output in enumerate(unroll(net, batch, STEPS)):
            logits = net.head.logits(output.hidden)  # type: ignore[operator]
            draft = logits.softmax(1)
            for row, (slot, label, probs) in enumerate(
                zip(output.slots.tolist(), output.labels.tolist(), draft, strict=True)
            ):
                ids, target = batch.top_ids[label], batch.top_logprobs[label].exp()
                if step == 0:
                    mass = sum(float(target[i]) for i, token in enumerate(ids) if logits[row, token] > -torch.inf)
                    covered.append(mass / float(target.sum()))
                overlap = sum(min(float(target[i]), float(probs[token])) for i, token in enumerate(ids.tolist()))
                overlap += min(1 - float(target.sum()), 1 - float(probs[ids].sum()))
                accepted.setdefault(slot, []).append(overlap)
                agreed.setdefault(slot, []).append(float(int(probs.argmax()) == int(ids[0])))
    for step in range(STEPS):
        for values, told in ((agreed, got.top1), (accepted, got.acceptance)):
            column = [chain[step] for chain in values.values() if len(chain) > step]
            assert got.labels[step] == len(column)
            assert told[step] == pytest.approx(sum(column) / len(column), abs=1e-5)
    for values, length in ((agreed, got.acceptance_length), (accepted, got.sampled_length)):
        chains = [torch.tensor(chain).cumprod(0).sum() for chain in values.values() if len(chain) == STEPS]
        assert length == pytest.approx(1 + float(sum(chains)) / len(chains), abs=1e-4)
    assert got.acceptance[0] > 0
    assert got.ceiling == pytest.approx(sum(covered) / len(covered), abs=1e-5)
    assert (got.ceiling < 0.99) == (head in ("trimmed", "routed"))


def test_the_journal_forgets_what_will_be_done_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, steps=9, done=0)
    for step in range(1, 6):
        journal.write({"step": step, "loss": 1.0})
    with journal.path.open("a") as lines:
        lines.write('{"step": 6, "lo')  # cut off
    Journal(tmp_path, steps=9, done=3).write({"step": 4, "loss": 2.0})
    assert [line["step"] for line in read_lines(journal.path)] == [1, 2, 3, 4]


def test_a_journal_has_a_line_for_each_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"top1": [0.5, 0.25], "acceptance": [0.4, 0.3], "acceptance_length": 1.7}
    Journal(tmp_path, steps=9, done=0).write({"step": 5, "validation": numbers})
    assert capsys.readouterr().err == "step 5: top-1 50.0 25.0 % · acceptance 40.0 30.0 % · acceptance length 1.700\n"


def test_a_picture_or_a_word_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path, steps=9, done=0)
    for step in (1, 2):
        journal.write({"step": step, "loss": 3.0 / step})
    journal.path.write_text(
        journal.path.read_text() + json.dumps({"step": 2, "validation": {"top1": [0.1, 0.2]}}) + "\n"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    draw(journal, tmp_path / "curve.png")
    assert "pip install 'slimtier[train]'" in capsys.readouterr().err
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    draw(journal, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
