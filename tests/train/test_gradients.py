"""The gradients of a batch are those of its whole loss, however it is cut: by chunks of slots or by processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slimtier.drafters.eagle.heads.routed import RoutedHead
from slimtier.train import candidates
from slimtier.train.candidates import all_candidates
from slimtier.train.config import LossPart
from slimtier.train.gradients import Gradients, Unrolling
from slimtier.train.losses import labels_of, losses_of
from slimtier.train.parallel import Ranks
from slimtier.train.unroll import unroll
from tests.train.captures import VOCAB
from tests.train.networks import network, whole_batch
from tests.train.training import SHORT, metrics, run

HOW = Unrolling(steps=3, decay=0.8, share=0.7)


@pytest.mark.parametrize("head", ["full", "slim", "trimmed", "routed"])
def test_chunks_make_the_gradients_of_the_whole_loss(
    head: str, tiny_capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch = network(head), whole_batch(tiny_capture)
    loss = LossPart(kind="kl", router=0.1)
    monkeypatch.setattr(candidates, "_CHUNK_BYTES", {"cpu": 7 * 4 * VOCAB})  # seven slots at a time
    report = Gradients(net, loss, Ranks()).add(batch, HOW, seed=4)
    got = {name: weight.grad for name, weight in net.named_parameters()}
    net.zero_grad()
    ids = net.head.ids if head == "trimmed" else None
    everything = all_candidates(VOCAB, ids, torch.device("cpu"))  # type: ignore[arg-type]
    total = torch.zeros(())
    for step, output in enumerate(unroll(net, batch, 3, share=0.7, seed=4)):
        labels = labels_of(batch.top_ids[output.labels], batch.top_logprobs[output.labels], everything)
        each = losses_of(net.head.scores(output.hidden, None), labels, everything, "kl", 3.0).loss  # type: ignore[operator]
        if isinstance(net.head, RoutedHead):
            each = (
                each + 0.1 * losses_of(net.head.router.scores(output.hidden, None), labels, everything, "kl", 3.0).loss
            )
        total = total + 0.8**step * each.sum() / labels.usable.sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert report.loss == pytest.approx(float(total.detach()), rel=1e-5)
    for name, weight in net.named_parameters():
        grad = got[name]
        assert (grad is None) == (weight.grad is None)
        if grad is not None and weight.grad is not None:
            torch.testing.assert_close(grad, weight.grad, atol=1e-5 * float(weight.grad.abs().max()), rtol=1e-3)


def test_later_steps_weigh_less_and_are_averaged_over_their_own_labels(tiny_capture: Path) -> None:
    net, batch = network(), whole_batch(tiny_capture)
    whole = Gradients(net, LossPart(), Ranks()).add(batch, Unrolling(2, 0.8, 1.0), seed=0)
    alone = Gradients(net, LossPart(), Ranks()).add(batch, Unrolling(1, 0.8, 1.0), seed=0)
    half = Gradients(net, LossPart(), Ranks()).add(batch, Unrolling(2, 0.4, 1.0), seed=0)
    assert whole.labels[1] < whole.labels[0] == len(batch.slots)
    assert whole.loss - alone.loss == pytest.approx(2 * (half.loss - alone.loss), rel=1e-4)


def test_a_candidate_set_comes_near_the_vocabulary(tiny_capture: Path) -> None:
    net, batch = network(), whole_batch(tiny_capture)
    batch.top_ids.clamp_(max=15)  # so that the set is smaller than the vocabulary
    exact = Gradients(net, LossPart(), Ranks()).add(batch, Unrolling(1, 0.8, 1.0), seed=0).loss
    sampled = [
        Gradients(net, LossPart(candidates=40), Ranks()).add(batch, Unrolling(1, 0.8, 1.0), s) for s in range(20)
    ]
    losses = torch.tensor([report.loss for report in sampled])
    assert float(losses.std()) > 0
    assert float(losses.mean()) == pytest.approx(exact, rel=0.03)


def test_two_processes_train_as_one(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    pairs = ("optimisation.steps=6", "loss.candidates=48", "run.validate_every=6")
    run(tiny_capture, tiny_target, tmp_path / "one", *pairs)
    code = (
        "import json, sys; from pathlib import Path; from slimtier.train.config import read_config;"
        "from slimtier.train.run import Request, train; a = json.loads(sys.argv[1]);"
        "train(Request(Path(a[0]), a[1], Path(a[2]), read_config(None, a[3])), print, lambda done, of: None)"
    )
    arguments = json.dumps([str(tiny_capture), str(tiny_target), str(tmp_path / "two"), [*SHORT, *pairs]])
    port = 20000 + os.getpid() % 20000
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen([sys.executable, "-c", code, arguments], env={**os.environ, **shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(timeout=240) for process in both] == [0, 0]
    for alone, shared in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert shared["labels"] == alone["labels"]
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert shared["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
    last = [metrics(tmp_path / name, "validation")[-1]["validation"]["acceptance"] for name in ("one", "two")]
    assert last[0] == pytest.approx(last[1], abs=1e-4)
