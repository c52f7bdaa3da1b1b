"""Adapters of a route: what they change and what they do not, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slimtier.checkpoint import write_checkpoint
from slimtier.errors import ConfigError, InputError, ModelFileError
from slimtier.models.adapters import Adapters, MergedTensor, Pair, read_adapters, write_adapters
from slimtier.models.native import NativeTarget, load_native, open_weights
from slimtier.models.native_torch import TorchTarget
from slimtier.models.precision import quantize4, quantize8
from slimtier.models.resolve import ModelFiles, resolve
from slimtier.models.route_file import ModelIdentity, RouteFile, check_route, described, find_route
from slimtier.models.slim import SlimTarget
from slimtier.types import Route
from tests.models.hf_models import target_of
from tests.models.native_models import save

TOKENS = torch.randint(3, 60, (30,), generator=torch.Generator().manual_seed(7)).tolist()
ROUTE = Route(("full", "skip", "q4", "q8"), ("full", "full", "skip", "q4"))
O_PROJ = "model.layers.{}.self_attn.o_proj.weight"
DOWN_PROJ = "model.layers.{}.mlp.down_proj.weight"
SHAPES = {O_PROJ.format(0): (64, 64), O_PROJ.format(2): (64, 64), DOWN_PROJ.format(1): (64, 112)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = tmp_path_factory.mktemp("llama")
    save("llama", directory)
    return resolve(str(directory))


@pytest.fixture
def target(files: ModelFiles) -> NativeTarget:
    found = load_native(files, precision="fp32", threads=1)
    assert isinstance(found, NativeTarget)
    return found


def random_adapters(seed: int = 0, shapes: Any = SHAPES, rank: int = 3) -> Adapters:
    draws = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return draws.normal(size=shape).astype(np.float32) * np.float32(0.2)

    return Adapters.of({name: Pair(draw(rank, k), draw(n, rank)) for name, (n, k) in shapes.items()})


def logits_of(model: Any) -> torch.Tensor:
    hidden, _ = model.forward(TOKENS, model.begin(1, 64), [len(TOKENS)])
    logits: torch.Tensor = model.head(hidden)
    return logits


def stored(path: Path, target: Any, adapters: Adapters, route: Route = ROUTE) -> Path:
    write_adapters(path, adapters, described(ModelIdentity.of(target), route), {"seed": 0})
    return path


def test_the_copies_are_the_sums_rounded(files: ModelFiles, target: NativeTarget) -> None:
    """Beside a model whose files hold the sums; the naive twin of `Builder._adapted`."""
    adapters = random_adapters()
    target.adapt(adapters)
    weights = open_weights(files)
    builder = target._builder
    for name, action in ((O_PROJ.format(0), "full"), (O_PROJ.format(2), "q4"), (DOWN_PROJ.format(1), "q8")):
        matrix = builder._on(name, action, adapters.digest)  # type: ignore[arg-type]
        pair = adapters.pairs[name]
        merged = weights.tensors[name].dense() + pair.b @ pair.a
        codes = quantize4(merged) if action == "q4" else quantize8(merged)
        group = np.arange(merged.shape[1]) // codes.group
        expected = codes.codes.astype(np.float32) * codes.scales[:, group]
        expected += 0 if codes.mins is None else codes.mins[:, group]
        row = np.empty(matrix.k, dtype=np.float32)
        for index in range(matrix.n):
            matrix.row(index, row)
            np.testing.assert_allclose(row, expected[index], rtol=1e-6, atol=1e-7)
    untouched = "model.layers.0.mlp.up_proj.weight"
    assert builder._on(untouched, "full", adapters.digest) is builder._matrices[untouched]
    assert MergedTensor(weights.tensors[untouched], pair).codes() is None


def test_the_target_has_the_same_bits_and_the_route_has_others(target: NativeTarget) -> None:
    slim = SlimTarget(target, ROUTE)
    before, plain = logits_of(target), logits_of(slim)
    adapters, others = random_adapters(), random_adapters(1)
    for one in (adapters, others):
        target.adapt(one)
    adapted = SlimTarget(target, replace(ROUTE, adapter=adapters.digest))
    changed = logits_of(adapted)
    assert torch.equal(logits_of(target), before)
    assert torch.equal(logits_of(slim), plain)
    assert (changed - plain).abs().max() > 0.1
    assert not torch.equal(logits_of(SlimTarget(target, replace(ROUTE, adapter=others.digest))), changed)
    assert torch.equal(logits_of(adapted), changed)


def test_a_step_reads_no_more(target: NativeTarget) -> None:
    adapters = random_adapters()
    target.adapt(adapters)
    adapted, _ = target.route_bytes(replace(ROUTE, adapter=adapters.digest))
    plain, copies = target.route_bytes(ROUTE)
    assert adapted < plain, "what was full is now of 8 bits"
    assert copies > 0


def test_zero_adapters_are_the_low_precision_copies(target: NativeTarget) -> None:
    pairs = random_adapters().pairs
    adapters = Adapters.of({name: Pair(pair.a, np.zeros_like(pair.b)) for name, pair in pairs.items()})
    target.adapt(adapters)
    low = Route.at(4, "q8")
    adapted = SlimTarget(target, replace(low, adapter=adapters.digest))
    assert torch.equal(logits_of(adapted), logits_of(SlimTarget(target, low)))


def test_a_directory_names_the_route(tmp_path: Path, target: NativeTarget) -> None:
    adapters = random_adapters()
    path = stored(tmp_path / "route", target, adapters)
    found, about = read_adapters(path)
    assert (found.digest, found.rank, about["rank"]) == (adapters.digest, 3, 3)
    for name, pair in adapters.pairs.items():
        assert all(map(np.array_equal, found.pairs[name], pair))
    check_route(path)
    route, file = find_route(str(path), target)
    assert (route, file) == (replace(ROUTE, adapter=adapters.digest), None)
    logits_of(SlimTarget(target, route))
    assert route != ROUTE
    assert hash(route) != hash(ROUTE)
    with pytest.raises(ConfigError, match="would lose the route's adapters"):
        RouteFile(ModelIdentity.of(target), route).write(tmp_path / "route.json")


# What is refused.


def test_another_model_and_other_shapes(tmp_path: Path, target: NativeTarget) -> None:
    identity = replace(ModelIdentity.of(target), digest="0" * 16)
    write_adapters(tmp_path / "foreign", random_adapters(), described(identity, ROUTE), {})
    with pytest.raises(ConfigError, match="digest"):
        find_route(tmp_path / "foreign", target)
    wide = random_adapters(shapes={O_PROJ.format(0): (64, 96)})
    with pytest.raises(InputError, match=r"of shape \[64, 96\], which is \[64, 64\]: train one"):
        find_route(stored(tmp_path / "wide", target, wide), target)
    unknown = random_adapters(shapes={O_PROJ.format(9): (64, 64)})
    with pytest.raises(InputError, match="is none of the model's layers"):
        target.adapt(unknown)
    with pytest.raises(InputError, match="which this target was not given"):
        SlimTarget(target, replace(ROUTE, adapter=wide.digest))


def test_other_runtimes(files: ModelFiles, tmp_path: Path) -> None:
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    hf = target_of("llama")
    for model, runtime in ((plain, "torch"), (hf, "hf")):
        layers = model.info.num_layers
        path = stored(tmp_path / runtime, model, random_adapters(), Route.skipping(layers, [1]))
        with pytest.raises(ConfigError, match=f"only the native CPU kernels run: on {runtime} leave them out"):
            find_route(path, model)
        route = replace(Route.skipping(layers, [1]), adapter="0" * 16)
        with pytest.raises(ConfigError, match="only the native CPU kernels have"):
            logits_of(SlimTarget(model, route))


def test_pairs_that_do_not_fit() -> None:
    a, b = np.ones((3, 64), np.float32), np.ones((64, 3), np.float32)
    for pairs, words in (
        ({}, "no adapter"),
        ({"x": Pair(a, b[:, :2])}, "one rank"),
        ({"x": Pair(a, b), "y": Pair(a[:2], b[:, :2])}, "one rank"),
        ({"x": Pair(a[0], b)}, "one rank"),
        ({"x": Pair(a, b * np.float32("nan"))}, "not finite"),
    ):
        with pytest.raises(InputError, match=words):
            Adapters.of(pairs)


def test_broken_directories(tmp_path: Path, target: NativeTarget) -> None:
    write_checkpoint(tmp_path / "draft", {"hidden_size": 3}, {"a": np.ones(3, np.float32)}, {})
    with pytest.raises(InputError, match="holds no adapters of a route"):
        find_route(tmp_path / "draft", target)
    tensors = {f"{O_PROJ.format(0)}.lora_A": np.ones((3, 64), np.float32)}
    write_checkpoint(tmp_path / "half", {"slimtier": {"kind": "route_adapters"}}, tensors, {})
    with pytest.raises(InputError, match="half a pair"):
        find_route(tmp_path / "half", target)
    write_adapters(tmp_path / "bare", random_adapters(), {}, {})
    with pytest.raises(InputError, match="does not say its route"):
        find_route(tmp_path / "bare", target)
    path = stored(tmp_path / "route", target, random_adapters())
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError, match="truncated or was changed"):
        find_route(path, target)
    with pytest.raises(ConfigError, match="which is no file"):
        check_route(tmp_path)
