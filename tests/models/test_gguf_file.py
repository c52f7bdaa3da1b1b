"""Opening GGUF files: every architecture and quantisation, and every way a file can be wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimtier.errors import ModelError, ModelFileError, UnsupportedError
from slimtier.models.config import RopeConfig
from slimtier.models.gguf_file import open_gguf
from slimtier.models.resolve import ModelFiles
from slimtier.models.rope_factors import llama3_factors
from tests.models.model_files import HEAD_DIM, HIDDEN, LAYERS, Recipe, random_blocks, write_gguf

NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_in_transformers_order(tmp_path: Path, type_name: str) -> None:
    wanted = write_gguf(tmp_path / "m.gguf", Recipe(type_name=type_name))
    tensors = open_gguf(tmp_path / "m.gguf").tensors
    for short, name in NAMES.items():
        stored = wanted.get(f"blk.1.{short}")
        if stored is None:
            continue
        tensor = tensors[f"model.layers.1.{name}"]
        dense = tensor.dense()
        assert tensor.shape == dense.shape
        assert dense.dtype == np.float32
        assert dense.flags.writeable
        np.testing.assert_array_equal(dense, stored)
        codes = tensor.codes()
        assert (codes is None) == (type_name in ("F32", "F16", "BF16") or dense.ndim == 1)
        if codes is not None:
            values = np.repeat(codes.scales, codes.group, 1) * codes.codes
            np.testing.assert_array_equal(
                values if codes.mins is None else values + np.repeat(codes.mins, codes.group, 1), dense
            )


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_architecture(tmp_path: Path, arch: str, tied: bool) -> None:
    wanted = write_gguf(tmp_path / "m.gguf", Recipe(arch=arch, type_name="Q8_0", tied=tied))
    model = open_gguf(tmp_path / "m.gguf")
    config, gemma = model.config, arch in ("gemma2", "gemma3")
    assert (config.architecture, config.vocab.tied, config.norm_eps) == (arch, tied, 1e-5)
    assert (config.activation, config.post_norms) == (("gelu_tanh", True) if gemma else ("silu", False))
    assert (config.attention.qkv_bias, config.attention.qk_norm) == (arch == "qwen2", arch in ("qwen3", "gemma3"))
    assert config.attention.scale == HEAD_DIM**-0.5
    assert config.attention.windows == {"gemma2": (16, 0), "gemma3": (16, 16)}.get(arch, (0, 0))
    assert (config.attention.softcap, config.vocab.softcap) == ((50.0, 30.0) if arch == "gemma2" else (0.0, 0.0))
    assert config.vocab.embedding_scale == (HIDDEN**0.5 if gemma else 1.0)
    assert config.local_rope == (RopeConfig(10000.0) if arch == "gemma3" else None)
    assert model.eos_token_ids == (2,)
    norm = model.tensors["model.layers.0.input_layernorm.weight"].dense()
    np.testing.assert_array_equal(norm, wanted["blk.0.attn_norm.weight"])  # Gemma's file already holds 1 + w
    before_mlp = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
    stored = model.tensors[f"model.layers.0.{before_mlp}.weight"].dense()
    np.testing.assert_array_equal(stored, wanted["blk.0.ffn_norm.weight"])
    assert ("lm_head.weight" in model.tensors) is not tied


def test_biases_of_llama_are_reordered_like_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    biases = {
        f"blk.{i}.attn_{p}.bias": rng.normal(size=n).astype(np.float32)
        for i in range(LAYERS)
        for p, n in (("q", 256), ("k", 128), ("v", 128))
    }
    write_gguf(tmp_path / "m.gguf", Recipe(extra=biases))
    model = open_gguf(tmp_path / "m.gguf")
    stored = biases["blk.0.attn_k.bias"].reshape(2, HEAD_DIM // 2, 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(model.tensors["model.layers.0.self_attn.k_proj.bias"].dense(), stored)
    np.testing.assert_array_equal(
        model.tensors["model.layers.0.self_attn.v_proj.bias"].dense(), biases["blk.0.attn_v.bias"]
    )


LLAMA3 = RopeConfig(500000.0, "llama3", 32.0, 8192)


@pytest.mark.parametrize(
    ("meta", "extra", "rope"),
    [
        ({}, {}, RopeConfig(10000.0)),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {}, RopeConfig(10000.0, "linear", 8.0)),
        ({"rope.scale_linear": 4.0}, {}, RopeConfig(10000.0, "linear", 4.0)),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
            {},
            RopeConfig(10000.0, "yarn", 4.0, 32),
        ),
        (
            {"rope.freq_base": 500000.0},
            {"rope_freqs.weight": llama3_factors(LLAMA3, HEAD_DIM).astype(np.float32)},
            LLAMA3,
        ),
        ({}, {"rope_freqs.weight": np.ones(HEAD_DIM // 2, np.float32)}, RopeConfig(10000.0)),
    ],
)
def test_rope(tmp_path: Path, meta: dict[str, Any], extra: dict[str, np.ndarray], rope: RopeConfig) -> None:
    write_gguf(tmp_path / "m.gguf", Recipe(meta=meta, extra=extra))
    assert open_gguf(tmp_path / "m.gguf").config.rope == rope


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (Recipe(arch="phi3"), "phi3"),
        (Recipe(type_name="Q2_K"), "Q2_K"),
        (Recipe(meta={"rope.scaling.type": "longrope"}), "longrope"),
        (Recipe(meta={"rope.dimension_count": 32}), "rope.dimension_count"),
        (Recipe(meta={"expert_count": 8}), "expert_count"),
        (Recipe(meta={"attention.causal": False}), "causal"),
        (Recipe(arch="qwen2", meta={"attention.sliding_window": 16}), "sliding window"),
        (Recipe(extra={"rope_freqs.weight": np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)}), "rope_freqs"),
        (Recipe(extra={"blk.0.attn_output.bias": np.zeros(HIDDEN, np.float32)}), "o_proj.bias"),
        (Recipe(meta={"attention.head_count_kv": [2, 1]}), "head_count_kv"),
    ],
)
def test_what_native_does_not_run_is_named(tmp_path: Path, recipe: Recipe, named: str) -> None:
    write_gguf(tmp_path / "m.gguf", recipe)
    with pytest.raises(UnsupportedError, match=named) as caught:
        open_gguf(tmp_path / "m.gguf")
    assert str(caught.value).endswith("try --runtime hf")


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (Recipe(drop=("blk.1.ffn_up.weight",)), r"missing tensor model.layers.1.mlp.up_proj.weight"),
        (Recipe(drop=("token_embd.weight",)), r"missing tensor token_embd.weight"),
        (Recipe(meta={"feed_forward_length": 768}), r"shape \[512, 256\].*\[768, 256\]"),
        (Recipe(meta={"block_count": 3}), r"missing tensor model.layers.2.input_layernorm.weight and 8 more"),
        (Recipe(meta={"embedding_length": None}), r"llama.embedding_length is None"),
        (Recipe(meta={"attention.head_count": 0}), r"attention.head_count is 0"),
    ],
)
def test_an_inconsistent_file_is_named(tmp_path: Path, recipe: Recipe, named: str) -> None:
    write_gguf(tmp_path / "m.gguf", recipe)
    with pytest.raises(ModelFileError, match=named):
        open_gguf(tmp_path / "m.gguf")


def test_a_quantised_vector_is_named(tmp_path: Path) -> None:
    norm = random_blocks("Q8_0", 1, HIDDEN)[0]
    recipe = Recipe(drop=("output_norm.weight",), extra={"output_norm.weight": norm}, extra_type="Q8_0")
    write_gguf(tmp_path / "m.gguf", recipe)
    with pytest.raises(UnsupportedError, match=r"vector quantised as Q8_0 \(model\.norm\.weight\)"):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model file at all", b"GGUF", b"GGUF\x03\0\0\0"])
def test_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"m\.gguf"):
        open_gguf(tmp_path / "m.gguf")


def test_missing_file_and_foreign_version(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        open_gguf(tmp_path / "none.gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(64))
    with pytest.raises(UnsupportedError, match="big-endian"):
        open_gguf(tmp_path / "m.gguf")


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_gguf(whole, Recipe())
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    for share in (0.001, 0.002, 0.003, 0.005, 0.01, 0.1, 0.5, 0.9, 0.99):
        cut.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ModelFileError, match=r"truncated|cut short"):
            open_gguf(cut)
    cut.write_bytes(content[:-64])
    with pytest.raises(ModelFileError, match=r"truncated: tensor blk\.1\."):
        open_gguf(cut)


def test_damaged_headers_never_crash(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_gguf(whole, Recipe())
    content = bytearray(whole.read_bytes())
    rng = np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    refusals = []
    for _ in range(200):
        copy = bytearray(content)
        for at in rng.integers(4, 2500, 3):
            copy[at] = rng.integers(0, 256)
        damaged.write_bytes(copy)
        try:
            open_gguf(damaged)
        except ModelError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert not [refusal for refusal in refusals if "\n" in refusal]


def test_the_real_file(smollm2: ModelFiles) -> None:
    begun = time.perf_counter()
    model = open_gguf(smollm2.path)
    opened = time.perf_counter()
    assert model.eos_token_ids == (2,)
    assert (model.config.num_layers, model.config.vocab.size, model.config.vocab.tied) == (30, 49152, True)
    assert model.tensors["model.embed_tokens.weight"].source == "Q8_0"
    coded = [tensor.codes() for tensor in model.tensors.values() if len(tensor.shape) == 2]
    unpacked = time.perf_counter()
    assert all(codes is not None for codes in coded)
    assert opened - begun < 2.0  # 0.05 s on an idle machine
    assert unpacked - opened < 5.0  # 0.2 s on an idle machine


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_real_file_as_transformers_reads_it(smollm2: ModelFiles) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    values = load_gguf_checkpoint(str(smollm2.path))["config"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    state = load_gguf_checkpoint(str(smollm2.path), return_tensors=True, model_to_load=model)["tensors"]
    tensors = open_gguf(smollm2.path).tensors
    assert set(tensors) == {name for name in state if name != "lm_head.weight"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.dense(), state[name].numpy(), err_msg=name)
