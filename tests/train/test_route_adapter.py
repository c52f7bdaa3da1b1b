"""Training of a route's adapters: the model in torch beside the native one, what is learned, and runs that go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer import Typer
from typer.testing import CliRunner

from slimtier.cli.repair import repair as verb
from slimtier.errors import ConfigError
from slimtier.models.native import NativeTarget, load_native, open_weights
from slimtier.models.resolve import resolve
from slimtier.models.route_file import find_route
from slimtier.models.slim import SlimTarget
from slimtier.train import repair as module
from slimtier.train.repair import Repair, Repaired, Training, repair
from slimtier.train.repair_settings import read_repair
from slimtier.train.route_adapter import AdaptedModel, adapted_matrices, as_adapters, start_factors
from slimtier.train.shards import open_capture
from slimtier.types import Route
from tests.models.native_models import save
from tests.train.captures import LAYERS, Recipe, some_rows, write_capture, write_target

CPU = torch.device("cpu")
TOP = 16
SHORT = {"rank": 8, "steps": 24, "lr": 2e-2, "batch_tokens": 80, "checkpoint_every": 6, "log_every": 4}
TARGETS = ("o_proj", "down_proj")


@pytest.fixture(scope="module")
def answered(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture whose labels are what the tiny target says after each token."""
    directory = write_capture(tmp_path_factory.mktemp("answered"), Recipe(some_rows(60), top=TOP))
    target = load_native(resolve(str(tiny_target)), precision="fp32", threads=1)
    shard = directory / "shard-00000.safetensors"
    tensors = load_file(shard)
    said = []
    for first, stop in pairwise(tensors["offsets"].tolist()):
        hidden, _ = target.forward(tensors["token_ids"][first:stop].tolist(), target.begin(1, 64), [stop - first])
        said.append(target.head(hidden).log_softmax(1).roll(1, 0))
    top = torch.cat(said)[tensors["answer"].bool()].topk(TOP)
    save_file({**tensors, "top_ids": top.indices.int(), "top_logprobs": top.values.half()}, shard)
    listed = json.loads((directory / "shards.jsonl").read_text())
    listed["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    (directory / "shards.jsonl").write_text(json.dumps(listed) + "\n")
    return directory


def run(capture: Path, target: Path, out: Path, resume: bool = False, **changes: Any) -> Repaired:
    settings = read_repair(None, {**SHORT, **changes})
    request = Repair(capture, str(target), "skip:0.5", out, settings, "fp32", resume=resume)
    return repair(request, lambda words: None)


@pytest.mark.parametrize("family", ["llama", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_without_adapters_it_is_the_native_model_on_the_route(family: str, tmp_path: Path) -> None:
    save(family, tmp_path)
    files = resolve(str(tmp_path))
    native, weights = load_native(files, precision="fp32", threads=1), open_weights(files)
    route = Route(("full", "skip", "full", "full"), ("full", "full", "skip", "full"))
    factors = start_factors(weights, adapted_matrices(route, TARGETS), 3, 0, CPU)
    model = AdaptedModel(weights, route, factors, CPU)
    tokens = torch.randint(3, 96, (20,), generator=torch.Generator().manual_seed(1))
    hidden, _ = native.forward(tokens.tolist(), native.begin(1, 32), [20], route=route)
    found = model.logits(tokens, torch.arange(20))
    torch.testing.assert_close(found.detach(), native.head(hidden), rtol=1e-3, atol=1e-3)
    found.square().sum().backward()
    assert len(factors) == 6
    for a, b in factors.values():
        assert a.grad is not None
        assert b.grad is not None
        assert not a.grad.any(), "b is zero"
        assert b.grad.any()
    assert not any(weight.requires_grad for weight in model.weights.values())


def test_the_gradient_is_that_of_a_small_change(tiny_target: Path) -> None:
    weights = open_weights(resolve(str(tiny_target)))
    route = Route.skipping(LAYERS, [1])
    factors = start_factors(weights, adapted_matrices(route, TARGETS), 2, 0, CPU)
    model = AdaptedModel(weights, route, factors, CPU)
    tokens = torch.arange(3, 15)

    def value() -> torch.Tensor:
        return model.logits(tokens, torch.arange(12)).log_softmax(1)[:, 7].sum()

    name = "model.layers.0.self_attn.o_proj.weight"
    b = factors[name][1]
    (gradient,) = torch.autograd.grad(value(), [b])
    direction = gradient / gradient.norm()
    with torch.no_grad():
        b += 1e-2 * direction
        above = value()
        b -= 2e-2 * direction
        below = value()
    assert float((above - below) / 2e-2) == pytest.approx(float(gradient.norm()), rel=0.02)


def test_adapters_come_closer_and_run_natively(answered: Path, tiny_target: Path, tmp_path: Path) -> None:
    done = run(answered, tiny_target, tmp_path / "out")
    assert (done.done, done.steps) == (24, 24)
    assert done.after is not None
    assert done.after.kl < 0.9 * done.before.kl
    assert done.after.tokens == done.before.tokens > 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4, 8, 12, 16, 20, 24, 24]
    assert lines[-1]["held_out"]["kl"] == done.after.kl
    assert "top1" in lines[1]

    files = resolve(str(tiny_target))
    target = load_native(files, precision="fp32", threads=1)
    assert isinstance(target, NativeTarget)
    tokens = list(range(3, 30))
    whole, _ = target.forward(tokens, target.begin(1, 64), [27])
    route, _ = find_route(done.directory, target)
    hidden, _ = SlimTarget(target, route).forward(tokens, target.begin(1, 64), [27])
    assert torch.equal(target.forward(tokens, target.begin(1, 64), [27])[0], whole)
    adapters = target._builder._adapters[route.adapter]
    factors = {name: (torch.from_numpy(a), torch.from_numpy(b)) for name, (a, b) in adapters.pairs.items()}
    assert as_adapters(factors).digest == route.adapter
    model = AdaptedModel(open_weights(files), route, factors, CPU)
    near, plain = (each.logits(torch.tensor(tokens), torch.arange(27)) for each in (model, bare(model)))
    error = (target.head(hidden) - near).abs().mean()
    assert error < 0.1 * (near - plain).abs().mean(), "copies of 8 bits say what was trained"


def bare(model: AdaptedModel) -> AdaptedModel:
    """The same without its adapters."""
    other = object.__new__(AdaptedModel)
    other.__dict__.update({**model.__dict__, "factors": {}})
    return other


def test_the_losses_are_those_of_the_answer_tokens(tiny_capture: Path, tiny_target: Path) -> None:
    """Against a loop over the tokens."""
    capture = open_capture(tiny_capture)
    model = AdaptedModel(open_weights(resolve(str(tiny_target))), Route.skipping(LAYERS, [2]), {}, CPU)
    place = next(row for row in capture.rows if len(row.segments) == 2)
    tokens, (ids, logprobs) = capture.read_tokens(place), capture.read_labels(place)
    said = model.logits(tokens, torch.arange(len(tokens))).log_softmax(1)
    expected = []
    for label, at in enumerate(at for first, stop in place.segments for at in range(first, stop)):
        target, slim = logprobs[label].exp(), said[at - 1, ids[label]]
        kl = (target * (logprobs[label] - slim)).sum()
        rest, other = 1 - target.sum(), 1 - slim.exp().sum()
        expected.append(float(kl + rest * (rest / other).log()))
    losses = model.compare(capture, place, 1000)
    torch.testing.assert_close(losses.loss, torch.tensor(expected), rtol=1e-3, atol=1e-3)
    cut = place.segments[0][0] + 2
    torch.testing.assert_close(model.compare(capture, place, cut).loss, losses.loss[:2], rtol=1e-4, atol=1e-4)


def test_a_run_that_was_stopped_goes_on_to_the_same(
    tiny_capture: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tiny_capture, tiny_target, tmp_path / "whole", steps=8, checkpoint_every=3)
    step = Training.train_step

    def dies(self: Training) -> Any:
        if self.step == 5:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "train_step", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tiny_capture, tiny_target, tmp_path / "cut", steps=8, checkpoint_every=3)
    assert not (tmp_path / "cut" / "route").exists()
    with pytest.raises(ConfigError, match="holds a run already"):
        run(tiny_capture, tiny_target, tmp_path / "cut", steps=8)
    with pytest.raises(ConfigError, match=r"rank = 8: resume"):
        run(tiny_capture, tiny_target, tmp_path / "cut", resume=True, steps=8, rank=5)
    rest = run(tiny_capture, tiny_target, tmp_path / "cut", resume=True, steps=8, checkpoint_every=100)
    assert replace(rest, directory=whole.directory) == whole
    one, other = (each / "route" / "model.safetensors" for each in (tmp_path / "whole", tmp_path / "cut"))
    assert one.read_bytes() == other.read_bytes()


def test_what_cannot_be_repaired(tiny_capture: Path, tiny_target: Path, tmp_path: Path) -> None:
    settings = read_repair(None, {**SHORT, "steps": 1})
    for route in ("none", "q4"):
        with pytest.raises(ConfigError, match="nothing to repair"):
            repair(Repair(tiny_capture, str(tiny_target), route, tmp_path, settings), lambda words: None)
    write_target(tmp_path / "other", vocab=72)
    with pytest.raises(ConfigError, match="name the captured model"):
        repair(Repair(tiny_capture, str(tmp_path / "other"), "skip:0.5", tmp_path, settings), lambda words: None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rnak": 3}, "did you mean 'rank'"),
        ({"rank": 0}, "rank is 0"),
        ({"targets": []}, "targets is"),
        ({"targets": ["o_proj", "o_proj"]}, "each once"),
        ({"targets": ["c_proj"]}, "choose one of"),
        ({"lr": -1.0}, "lr is"),
        ({"row_tokens": 1}, "row_tokens is 1"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_repair(None, given)


def test_the_verb(tiny_capture: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Typer()
    app.command()(verb)
    config = tmp_path / "repair.toml"
    config.write_text("rank = 2\nsteps = 9\nbatch_tokens = 60\n")
    arguments = [str(tiny_capture), "--route", "skip:0.5", "--out", str(tmp_path / "out"), "--model", str(tiny_target)]
    arguments += ["--config", str(config), "--set", "steps=2", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["done"], found["steps"]) == (2, 2)
    assert Path(found["directory"], "model.safetensors").is_file()

    class Asked:
        def __enter__(self) -> Any:
            return lambda: True

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(module, "stop_requests", Asked)
    arguments[4] = str(tmp_path / "stopped")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    assert not (tmp_path / "stopped" / "route").exists()
