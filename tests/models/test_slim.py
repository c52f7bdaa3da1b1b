"""The target on a route: what it reads and writes of the target's caches, what it shares, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.errors import ConfigError, InputError
from slimtier.models.native import NativeTarget, load_native, open_weights
from slimtier.models.native_torch import TorchTarget
from slimtier.models.resolve import ModelFiles, resolve
from slimtier.models.rows import Rows
from slimtier.models.slim import SlimTarget, SomeRows
from slimtier.types import Route
from tests.models.hf_models import sequence, target_of
from tests.models.model_files import Recipe, write_gguf
from tests.models.native_models import save
from tests.stubs import StubTarget

TOKENS = torch.randint(3, 96, (40,), generator=torch.Generator().manual_seed(7)).tolist()
SKIP_0, SKIP_01 = ("skip", "full", "full"), ("skip", "skip", "full")
ROUTES = {
    "none": Route.full(4),
    "q8": Route.at(4, "q8"),
    "q4": Route.at(4, "q4"),
    "skip": Route.skipping(4, [1, 2]),
    "mixed": Route(("full", "skip", "q4", "full"), ("q8", "full", "skip", "q4"), "q8"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = tmp_path_factory.mktemp("llama")
    save("llama", directory)
    return resolve(str(directory))


@pytest.fixture(scope="module")
def target(files: ModelFiles) -> NativeTarget:
    found = load_native(files, precision="fp32", threads=1)
    assert isinstance(found, NativeTarget)
    return found


def feed(model: Any, cache: Any, tokens: Sequence[int], **options: Any) -> tuple[torch.Tensor, Any]:
    """The tokens as the next ones of a cache's only row."""
    return model.forward(list(tokens), cache, [len(tokens)], **options)


@pytest.mark.parametrize("name", ROUTES)
def test_a_slim_verifier_is_the_target_on_its_route(target: NativeTarget, name: str) -> None:
    slim, route = SlimTarget(target, ROUTES[name]), ROUTES[name]
    hidden, features = feed(slim, slim.begin(1, 64), TOKENS, capture=(0, 3))
    expected, wanted = feed(target, target.begin(1, 64), TOKENS, route=route, capture=(0, 3))
    assert torch.equal(hidden, expected)
    assert all(map(torch.equal, features, wanted))
    logits = target.head(hidden, route=route)
    assert torch.equal(slim.head(hidden), logits)
    assert slim.head(hidden, "argmax") == logits.argmax(-1).tolist()
    assert torch.equal(slim.head(hidden, "best two")[1], logits.topk(2).values.T)
    assert torch.equal(slim.weight("head"), target.weight("head"))
    whole, _ = feed(target, target.begin(1, 64), TOKENS)
    assert torch.equal(hidden, whole) == (name == "none")
    assert torch.equal(logits, target.head(hidden)) == (route.head == "full")


@pytest.mark.parametrize("name", ROUTES)
def test_it_goes_on_from_the_target_and_what_it_wrote_is_written_anew(target: NativeTarget, name: str) -> None:
    """Bit for bit, after runs of every length, with every number of tokens taken over at a time."""
    slim = SlimTarget(target, ROUTES[name])
    whole, _ = feed(target, target.begin(1, 64), TOKENS)
    cache = target.begin(1, 64)
    feed(target, cache, TOKENS[:9])
    done = 9
    for count in (1, 5, 2, 7):
        draft = TOKENS[done : done + count]
        afresh = target.begin(1, 64)
        feed(target, afresh, TOKENS[:done])
        said = torch.cat([feed(slim, cache, [token])[0] for token in draft])
        assert torch.equal(said, feed(slim, afresh, draft)[0]), "a run in pieces is the run at once"
        assert cache.verified == [done + count if name == "none" else done]
        cache.crop([done])
        assert torch.equal(feed(target, cache, draft)[0], whole[done : done + count])
        assert cache.verified == [done + count]
        done += count


def test_the_target_never_goes_on_from_what_a_route_wrote(target: NativeTarget) -> None:
    cache = target.begin(1, 64)
    feed(target, cache, TOKENS[:5])
    feed(SlimTarget(target, ROUTES["skip"]), cache, TOKENS[5:8])
    for model in (target, SlimTarget(target, ROUTES["q4"]), SlimTarget(target, Route.skipping(4, [1]))):
        with pytest.raises(InputError, match="under another route"):
            feed(model, cache, TOKENS[8:9])
        assert cache.lengths == [8]
    cache.crop([6])
    with pytest.raises(InputError, match="under another route"):
        feed(target, cache, TOKENS[6:9])
    feed(SlimTarget(target, Route.skipping(4, [1, 2, 3])), cache, TOKENS[6:9])
    assert (cache.lengths, cache.verified) == ([9], [5])
    with pytest.raises(InputError, match="under another route"):
        feed(SlimTarget(target, ROUTES["skip"]), cache, TOKENS[9:10])
    cache.crop([6])
    feed(SlimTarget(target, ROUTES["skip"]), cache, TOKENS[6:9])
    cache.crop([5])
    feed(target, cache, TOKENS[5:9])
    assert cache.verified == [9]


def test_rows_know_who_wrote_what() -> None:
    """Against a list with an entry a token, over random passes, crops and reorderings."""

    class Bare(Rows):
        def _take(self, rows: Sequence[int]) -> None:
            pass

    routes = [None, *(Route(("full",) * 3, mlp) for mlp in (SKIP_0, SKIP_01, ("full", "full", "skip")))]
    draws = torch.Generator().manual_seed(0)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=draws))

    rows, naive, refused = Bare(2), [list[Any](), list[Any]()], 0
    adopted = [False, False]  # and nothing came after it
    for _ in range(3000):
        what = draw(5)
        if what < 2:
            route, lengths = routes[draw(4)], [draw(3) for _ in naive]
            each = zip(naive, lengths, adopted, strict=True)
            lasts = [None if free else row[-1] for row, length, free in each if length and row]
            fits = [last is None or last == route or (route is not None and route.thins(last)) for last in lasts]
            if all(fits):
                rows.claim(lengths, route)
                rows.append(lengths, route)
                naive = [row + [route] * length for row, length in zip(naive, lengths, strict=True)]
                adopted = [free and not length for free, length in zip(adopted, lengths, strict=True)]
            else:
                refused += 1
                with pytest.raises(InputError, match="under another route"):
                    rows.claim(lengths, route)
        elif what == 2:
            lengths = [draw(len(row) + 1) if draw(2) else len(row) for row in naive]
            rows.crop(lengths)
            each = zip(naive, lengths, adopted, strict=True)
            adopted = [free and length == len(row) for row, length, free in each]
            naive = [row[:length] for row, length in zip(naive, lengths, strict=True)]
        elif what == 3:
            row = draw(len(naive))
            rows.adopt([row])
            adopted[row] = (bool(naive[row]) and naive[row][-1] is not None) or adopted[row]
        else:
            order = [draw(len(naive)) for _ in range(1 + draw(3))]
            rows.keep(order)
            naive, adopted = [list(naive[row]) for row in order], [adopted[row] for row in order]
        assert rows.lengths == [len(row) for row in naive]
        assert rows.verified == [next((i for i, r in enumerate(row) if r is not None), len(row)) for row in naive]
    assert refused > 100


def test_the_target_goes_on_from_what_it_adopts(target: NativeTarget, files: ModelFiles) -> None:
    route = Route(("full",) * 4, ("full", "skip", "skip", "full"))
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    found = []
    for model in (target, plain):
        cache = model.begin(1, 64)
        feed(model, cache, TOKENS[:5])
        feed(model, cache, TOKENS[5:9], route=route)
        cache.adopt([0])
        hidden, _ = feed(model, cache, TOKENS[9:12])
        assert (cache.lengths, cache.verified) == ([12], [5])
        feed(model, cache, TOKENS[12:13], route=route)
        found.append(model.head(hidden))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=2e-4)
    hidden, _ = feed(target, target.begin(1, 64), TOKENS[:12])
    assert not torch.allclose(found[0], target.head(hidden)[9:], atol=1e-2), "the route left its mark"


def test_what_skips_attention_cannot_be_adopted(target: NativeTarget) -> None:
    cache = target.begin(2, 64)
    target.forward(TOKENS[:4], cache, [2, 2])
    target.forward(TOKENS[4:6], cache, [0, 2], route=ROUTES["skip"])
    cache.adopt([0])
    with pytest.raises(InputError, match="skips attention, so the target has no keys and values"):
        cache.adopt([0, 1])


def test_forked_and_reordered_rows_keep_who_wrote_them(target: NativeTarget) -> None:
    slim = SlimTarget(target, ROUTES["skip"])
    cache = target.begin(2, 64)
    target.forward(TOKENS[:4] + TOKENS[:6], cache, [4, 6])
    slim.forward(TOKENS[4:6], cache, [2, 0])
    assert cache.verified == [4, 6]
    cache.keep([1, 0, 0])
    assert (cache.lengths, cache.verified) == ([6, 6, 6], [6, 4, 4])
    target.forward(TOKENS[6:7], cache, [1, 0, 0])
    with pytest.raises(InputError, match="under another route"):
        target.forward(TOKENS[6:8], cache, [1, 1, 0])
    cache.crop([7, 4, 6])
    hidden, _ = target.forward(TOKENS[7:8] + TOKENS[4:8], cache, [1, 4, 0])
    whole, _ = feed(target, target.begin(1, 64), TOKENS[:8])
    assert torch.equal(hidden, torch.cat((whole[7:8], whole[4:8])))
    assert cache.verified == [8, 8, 4]


def test_some_rows_of_some_rows() -> None:
    target = StubTarget()
    slim = SlimTarget(target, Route.skipping(4, [1]))
    cache = target.begin(4, 64)
    target.forward([1, 2, 3, 4, 5, 6, 7], cache, [1, 1, 3, 2])
    some = SomeRows(SomeRows(cache, [1, 2, 3]), [1, 2])
    assert (some.lengths, some.verified) == ([3, 2], [3, 2])
    slim.forward([8, 9, 10], some, [1, 2])
    assert cache.lengths == [1, 1, 4, 4]
    assert cache.rows[2:] == [[3, 4, 5, 8], [6, 7, 9, 10]]
    assert some.verified == [3, 2]
    some.crop([3, 3])
    assert cache.lengths == [1, 1, 3, 3]
    with pytest.raises(NotImplementedError):
        some.keep([0])
    with pytest.raises(AssertionError, match="order"):
        SomeRows(cache, [2, 1])


# Memory.


@pytest.mark.parametrize(("precision", "most"), [("fp32", 0.3), ("bf16", 0.6), ("q8", 0.6)])
def test_a_q4_route_costs_little_beside_the_target(files: ModelFiles, precision: str, most: float) -> None:
    target = load_native(files, precision=precision, threads=1)
    slim = SlimTarget(target, ROUTES["q4"])
    assert 0 < slim.extra_bytes <= most * target.info.weight_bytes
    assert slim.info.weight_bytes < target.info.weight_bytes
    assert SlimTarget(target, ROUTES["q4"]).extra_bytes == slim.extra_bytes, "the copies are made once"
    assert SlimTarget(target, ROUTES["skip"]).extra_bytes == 0


@pytest.mark.parametrize(
    ("precision", "name"), [("q4", "q4"), ("q4", "q8"), ("q8", "q8"), ("fp32", "skip"), ("fp32", "none")]
)
def test_what_is_cheap_already_is_shared(files: ModelFiles, precision: str, name: str) -> None:
    target = load_native(files, precision=precision, threads=1)
    slim = SlimTarget(target, ROUTES[name])
    assert slim.extra_bytes == 0
    same = torch.equal(*(feed(model, target.begin(1, 64), TOKENS)[0] for model in (slim, target)))
    assert same == (name != "skip")
    assert slim.info.weight_bytes == target.info.weight_bytes or name == "skip"


@pytest.mark.parametrize("type_name", ["Q4_1", "Q4_K", "Q8_0", "Q6_K"])
def test_a_file_of_codes_at_fp32_is_its_numbers_and_its_routes_are_its_codes(tmp_path: Path, type_name: str) -> None:
    write_gguf(tmp_path / "m.gguf", Recipe(type_name=type_name))
    files = resolve(str(tmp_path / "m.gguf"))
    weights = open_weights(files)
    dense = replace(weights, tensors={name: _Dense(tensor) for name, tensor in weights.tensors.items()})
    target = NativeTarget(weights, name="codes", precision="fp32", threads=2)
    floats = NativeTarget(dense, name="floats", precision="fp32", threads=2)
    tokens = [token % target.info.vocab_size for token in TOKENS]
    logits = [one.head(feed(one, one.begin(1, 64), tokens)[0]) for one in (target, floats)]
    assert torch.equal(*logits)
    assert target.info.weight_bytes < 0.4 * floats.info.weight_bytes
    name = "q4" if type_name.startswith("Q4") else "q8"
    route = Route.at(target.info.num_layers, name)  # type: ignore[arg-type]
    eight = load_native(files, precision="q8", threads=1)
    assert isinstance(eight, NativeTarget)
    wider = eight.vocab_matrices["head"].nbytes if name == "q4" else 0  # a head of 8 bits, where the file's is of 4
    slim = SlimTarget(target, route)
    assert slim.extra_bytes == wider
    head = target.vocab_matrices["head"].nbytes
    assert slim.info.weight_bytes == target.info.weight_bytes + (wider - head if wider else 0)
    assert (target.info.stored, floats.info.stored) == (name, "f32")
    hidden = torch.randn(3, target.info.hidden_size)
    for precision in ("q4", "q8"):  # both with a head of 8 bits
        on_route = SlimTarget(target, Route.at(target.info.num_layers, precision))  # type: ignore[arg-type]
        assert torch.equal(on_route.head(hidden), eight.head(hidden))


class _Dense:
    """A tensor without its codes."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.source, self.dense = tensor.shape, "F32", tensor.dense

    def codes(self) -> None:
        return None


def test_what_a_step_reads_is_that_of_a_model_of_that_precision(files: ModelFiles) -> None:
    read = {name: load_native(files, precision=name, threads=1).info.weight_bytes for name in ("fp32", "q8", "q4")}
    target = load_native(files, precision="fp32", threads=1)
    assert {name: SlimTarget(target, Route.at(4, name)).info.weight_bytes for name in ("q8", "q4")} == {
        "q8": read["q8"],
        "q4": read["q4"],
    }
    assert SlimTarget(target, Route.full(4)).info.weight_bytes == read["fp32"]


def test_a_q8_model_on_a_q4_route_is_the_model_at_q4(files: ModelFiles) -> None:
    """Bit for bit: the same copies, and embeddings, head and cache of both are of 8 and 16 bits."""
    slim = SlimTarget(load_native(files, precision="q8", threads=1), ROUTES["q4"])
    own = load_native(files, precision="q4", threads=1)
    hidden, expected = (feed(model, model.begin(1, 64), TOKENS)[0] for model in (slim, own))
    assert torch.equal(hidden, expected)
    assert torch.equal(slim.head(hidden), own.head(hidden))


# Refusals.


@pytest.mark.parametrize("layers", [3, 5])
def test_a_route_of_another_number_of_layers(files: ModelFiles, target: NativeTarget, layers: int) -> None:
    route = Route.skipping(layers, [1])
    for make in (lambda: SlimTarget(target, route), lambda: feed(target, target.begin(1, 64), TOKENS, route=route)):
        with pytest.raises(InputError, match=f"is for {layers} layers and the model has 4"):
            make()
    uneven = replace(Route.skipping(4, [1]), mlp=("full",) * 3)
    with pytest.raises(InputError, match="layers"):
        feed(target, target.begin(1, 64), TOKENS, route=uneven)
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    with pytest.raises(InputError, match=f"is for {layers} layers and the model has 4"):
        SlimTarget(plain, route)
    with pytest.raises(InputError, match="layers"):
        SlimTarget(plain, uneven)
    hf = target_of("llama")
    with pytest.raises(InputError, match=f"is for {layers + 1} layers and the model has 3"):
        feed(hf, hf.begin(1, 40), TOKENS[:4], route=Route.skipping(layers + 1, [1]))


@pytest.mark.parametrize("name", ["q4", "q8", "mixed"])
def test_low_precision_is_refused_where_there_is_none(files: ModelFiles, name: str) -> None:
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    hf = target_of("llama")
    tokens = sequence(5, 1)
    three = replace(ROUTES[name], attention=ROUTES[name].attention[:3], mlp=ROUTES[name].mlp[:3])
    for model, route, runtime in ((plain, ROUTES[name], "torch"), (hf, three, "hf")):
        cache = model.begin(1, 40)
        with pytest.raises(ConfigError, match=f"only the native CPU kernels have: on {runtime} choose a route that"):
            feed(SlimTarget(model, route), cache, tokens)
        assert cache.lengths == [0]
        feed(model, cache, tokens)
        assert cache.verified == [5]


def test_the_torch_and_hf_runtimes_go_on_in_the_same_way(files: ModelFiles) -> None:
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    for model, route in ((plain, Route.skipping(4, [1, 2])), (target_of("llama"), Route.skipping(3, [1]))):
        tokens = sequence(20, 3)
        slim, cache = SlimTarget(model, route), model.begin(1, 40)
        whole, _ = feed(model, model.begin(1, 40), tokens)
        feed(model, cache, tokens[:8])
        said = torch.cat([feed(slim, cache, [token])[0] for token in tokens[8:14]])
        afresh = model.begin(1, 40)
        feed(model, afresh, tokens[:8])
        torch.testing.assert_close(said, feed(slim, afresh, tokens[8:14])[0], rtol=1e-4, atol=1e-4)
        assert not torch.allclose(said, whole[8:14], atol=1e-2)
        with pytest.raises(InputError, match="under another route"):
            feed(model, cache, tokens[14:])
        cache.crop([8])
        torch.testing.assert_close(feed(model, cache, tokens[8:])[0], whole[8:], rtol=1e-4, atol=1e-4)
