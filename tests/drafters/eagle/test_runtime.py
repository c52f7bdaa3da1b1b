"""The kernels' drafter and torch's: the same drafts, and the same bits in any batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.drafters.eagle.config import HeadConfig, NormConfig
from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.load import load_network, read_draft
from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.eagle.runtime import Runtime, Stop, Stretch
from slimtier.drafters.eagle.runtime_native import NativeRuntime
from slimtier.drafters.eagle.runtime_torch import TorchRuntime
from slimtier.engine import Engine
from slimtier.errors import NonFiniteError
from slimtier.models.native import NativeTarget
from slimtier.models.resolve import ModelFiles
from slimtier.types import SamplingParams
from tests.drafters.eagle.drafts import CAPTURE, save_random
from tests.models.native_models import save

VOCAB, HIDDEN = 96, 64
HEADS = {
    "full": HeadConfig("full", VOCAB),
    "slim": HeadConfig("slim", VOCAB, rank=40),
    "trimmed": HeadConfig("trimmed", VOCAB, size=33),
    "routed": HeadConfig("routed", VOCAB, rank=8, size=20),
}
NORMS = {
    "plain": NormConfig(),
    "before_fc": NormConfig(before_fc=True, output=True),
    "fc": NormConfig(fc=True, before_residual=True),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    path = tmp_path_factory.mktemp("target")
    save("llama", path)
    return ModelFiles("tiny", "safetensors", path)


@pytest.fixture(scope="module")
def target(files: ModelFiles) -> Any:
    return NativeTarget.from_pretrained(files, precision="fp32", threads=2)


def both(target: Any, path: Path) -> tuple[NativeRuntime, TorchRuntime]:
    draft = read_draft(path, target.info.num_layers)
    network = load_network(draft, target.weight("embedding"), target.info.max_positions)
    return NativeRuntime(draft, target, "fp32"), TorchRuntime(network)


def random_stretches(runtime: Runtime, seed: int = 0, counts: tuple[int, ...] = (5, 1, 9)) -> list[Stretch]:
    draw = torch.Generator().manual_seed(seed)
    return [
        Stretch(
            runtime.grow(None, 0, 32),
            0,
            torch.randint(VOCAB, (count,), generator=draw).tolist(),
            torch.randn(count, 3 * HIDDEN, generator=draw),
        )
        for count in counts
    ]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_both_runtimes_agree(target: Any, tmp_path: Path, head: str, norms: str, num_layers: int) -> None:
    path = save_random(target, tmp_path / "draft", head=HEADS[head], norms=NORMS[norms], num_layers=num_layers)
    native, plain = both(target, path)
    steps = [4, 3, 6]
    found = native.chain(random_stretches(native), steps, Stop(1e-9))
    wanted = plain.chain(random_stretches(plain), steps, Stop(1e-9))
    for one, other, count in zip(found, wanted, steps, strict=True):
        assert one.token_ids == other.token_ids
        assert len(one.token_ids) == count
        assert one.confidences == pytest.approx(other.confidences, rel=1e-3)
    stretches = [random_stretches(runtime) for runtime in (native, plain)]
    states = [runtime.forward(rows, fed_back=False) for runtime, rows in zip((native, plain), stretches, strict=True)]
    for one, other in zip(*states, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(native.logits(states[0][0]), plain.logits(states[1][0]), rtol=1e-3, atol=1e-3)
    fed = [
        [Stretch(row.store, len(row.tokens), [7], state[i, None]) for i, row in enumerate(rows)]
        for rows, (_, state) in zip(stretches, states, strict=True)
    ]
    again = [runtime.forward(rows, fed_back=True) for runtime, rows in zip((native, plain), fed, strict=True)]
    torch.testing.assert_close(again[0][1], again[1][1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stop", [Stop(0.35), Stop(go_on=0.2), Stop(0.1, 0.2)])
def test_a_chain_stops_alike(target: Any, tmp_path: Path, stop: Stop) -> None:
    native, plain = both(target, save_random(target, tmp_path / "draft"))
    lengths = set()
    for seed in range(6):
        chains = [runtime.chain(random_stretches(runtime, seed), [6] * 3, stop) for runtime in (native, plain)]
        assert [chain.token_ids for chain in chains[0]] == [chain.token_ids for chain in chains[1]]
        lengths |= {len(chain.token_ids) for chain in chains[0]}
    assert len(lengths) > 2
    assert native.chain(random_stretches(native), [2] * 3, Stop())[0].confidences == ()


def test_a_row_of_the_kernels_has_the_same_bits_alone_in_pieces_and_in_a_batch(target: Any, tmp_path: Path) -> None:
    native, _ = both(target, save_random(target, tmp_path / "draft"))
    together = native.forward(random_stretches(native), fed_back=False)
    for row, stretch in enumerate(random_stretches(native)):
        for piece in range(len(stretch.tokens)):
            alone = native.forward(
                [Stretch(stretch.store, piece, stretch.tokens[piece : piece + 1], stretch.inputs[piece, None])], False
            )
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


@pytest.mark.parametrize("runtime", [0, 1])
def test_a_grown_store_is_the_same(target: Any, tmp_path: Path, runtime: int) -> None:
    kind = both(target, save_random(target, tmp_path / "draft", num_layers=2))[runtime]
    stretch = random_stretches(kind, counts=(9,))[0]
    whole = kind.chain([stretch], [5], Stop())
    kind.forward([Stretch(stretch.store, 0, stretch.tokens[:6], stretch.inputs[:6])], fed_back=False)
    grown = kind.grow(stretch.store, 6, 200)
    assert kind.chain([Stretch(grown, 6, stretch.tokens[6:], stretch.inputs[6:])], [5], Stop()) == whole


@pytest.mark.parametrize("runtime", [0, 1])
def test_scores_that_are_not_finite_are_an_error(target: Any, tmp_path: Path, runtime: int) -> None:
    kind = both(target, save_random(target, tmp_path / "draft"))[runtime]
    stretch = random_stretches(kind, counts=(2,))[0]
    with pytest.raises(NonFiniteError, match="not finite"):
        kind.chain([Stretch(stretch.store, 0, stretch.tokens, stretch.inputs * torch.nan)], [3], Stop())


# With a native target, through the engine.

KINDS = {
    "greedy": {},
    "gumbel": {"temperature": 1.0, "coupling": "gumbel", "seed": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2},
}


@pytest.mark.parametrize("precision", ["fp32", "q8"])
@pytest.mark.parametrize(
    ("kind", "head"), [*(("greedy", head) for head in HEADS), ("gumbel", "slim"), ("penalties", "trimmed")]
)
def test_output_is_that_of_plain_decoding(
    files: ModelFiles, tmp_path: Path, precision: str, kind: str, head: str
) -> None:
    target = NativeTarget.from_pretrained(files, precision=precision, threads=2)
    path = save_random(target, tmp_path / "draft", head=HEADS[head])
    draw = random.Random(0)
    prompts = [[draw.randrange(3, VOCAB) for _ in range(length)] for length in (1, 7, 70)]
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True, **KINDS[kind]}
    wanted = [one.token_ids for one in Engine(target).generate(prompts, **options)]  # type: ignore[union-attr]
    for k, confidence in ((1, 0.0), (4, 0.0), (8, 0.3)):
        drafter = open_drafter(path, target, confidence=confidence, precision=precision)
        engine = Engine(target, drafter, num_speculative_tokens=k)
        found = engine.generate(prompts, **options)
        assert [one.token_ids for one in found] == wanted  # type: ignore[union-attr]
        assert confidence or all(one.stats.num_drafts > 3 for one in found)  # type: ignore[union-attr]
        assert engine.generate(prompts[2], **options).token_ids == wanted[2]  # type: ignore[union-attr]


@pytest.mark.parametrize("runtime", [0, 1])
def test_a_sampled_answer_repeats_with_its_seed_in_any_company(target: Any, tmp_path: Path, runtime: int) -> None:
    kind = both(target, save_random(target, tmp_path / "draft"))[runtime]
    engine = Engine(target, EagleDrafter(kind, CAPTURE, 0.05), num_speculative_tokens=4)
    sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=9)
    options = {"max_new_tokens": 20, "ignore_eos": True}
    alone = engine.generate([5, 6, 7], sampling, **options)
    assert engine.generate([5, 6, 7], sampling, **options).token_ids == alone.token_ids  # type: ignore[union-attr]
    if runtime == 0:  # torch's bits may depend on the batch
        together = engine.generate([[9] * 40, [5, 6, 7]], sampling, **options)
        assert together[1].token_ids == alone.token_ids  # type: ignore[index, union-attr]
    assert alone.stats.num_drafts > 5  # type: ignore[union-attr]
