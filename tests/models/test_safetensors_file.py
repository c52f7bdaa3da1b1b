"""Opening directories of safetensors, held against what transformers makes of the same directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.config import NativeConfig, RopeConfig
from slimtier.models.safetensors_file import open_safetensors
from tests.models.ropes import LLAMA3, YARN

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


def write_model(directory: Path, kind: str, dtype: torch.dtype = torch.float32, **more: Any) -> dict[str, np.ndarray]:
    """Save a random model; its tensors, float32."""
    torch.manual_seed(0)
    shard = more.pop("max_shard_size", "1GB")
    config = AutoConfig.for_model(kind, **(SIZES | more))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    model.save_pretrained(directory, max_shard_size=shard)
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


def config_only(directory: Path, kind: str, **values: Any) -> NativeConfig:
    """The NativeConfig of a model whose config.json is rewritten after saving."""
    if not (directory / "model.safetensors").exists():
        write_model(directory, kind, **{key: values[key] for key in ("tie_word_embeddings",) if key in values})
    path = directory / "config.json"
    saved = {"architectures": [CLASSES[kind]], "model_type": kind} | SIZES | values
    path.write_text(json.dumps({key: value for key, value in saved.items() if value != "absent"}))
    return open_safetensors(directory).config


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_class(tmp_path: Path, kind: str, tied: bool) -> None:
    state = write_model(tmp_path, kind, tie_word_embeddings=tied)
    model = open_safetensors(tmp_path)
    config, reference = model.config, AutoConfig.from_pretrained(tmp_path)
    assert config.vocab.tied is tied
    assert set(model.tensors) == {name for name in state if not (tied and name == "lm_head.weight")}
    for name, tensor in model.tensors.items():
        one = 1.0 if kind.startswith("gemma") and name.endswith("norm.weight") else 0.0
        np.testing.assert_array_equal(tensor.dense(), np.float32(one) + state[name], err_msg=name)
        assert tensor.codes() is None
        assert tensor.dense().flags.writeable
    assert config.num_layers == len(config.attention.windows) == 4
    assert config.norm_eps == reference.rms_norm_eps
    assert config.attention.windows == windows(reference)
    assert config.attention.scale == getattr(reference, "query_pre_attn_scalar", 8) ** -0.5
    assert config.attention.softcap == (getattr(reference, "attn_logit_softcapping", None) or 0.0)
    assert config.vocab.softcap == (getattr(reference, "final_logit_softcapping", None) or 0.0)


def windows(reference: Any) -> tuple[int, ...]:
    """Each layer's window as the transformers class has it."""
    if reference.model_type == "llama":
        return (0,) * reference.num_hidden_layers
    if reference.model_type == "mistral":
        return (reference.sliding_window or 0,) * reference.num_hidden_layers
    return tuple(reference.sliding_window if kind == "sliding_attention" else 0 for kind in reference.layer_types)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_shards(tmp_path: Path, dtype: torch.dtype) -> None:
    state = write_model(tmp_path, "llama", dtype, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = open_safetensors(tmp_path)
    for name, tensor in model.tensors.items():
        np.testing.assert_array_equal(tensor.dense(), state[name])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("llama", {}),
        ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
        ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}}),
        ("llama", {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("qwen2", {"rope_theta": 1e6, "rope_scaling": YARN}),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
        ("qwen3", {"rope_parameters": YARN | {"rope_theta": 1e6, "truncate": False, "beta_fast": 16.0}}),
        ("llama", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
        ("llama", {"rope_scaling": YARN | {"attention_factor": 1.25}}),
        ("gemma2", {"rope_theta": 20000.0}),
    ],
)
def test_rope_of_either_form(tmp_path: Path, kind: str, values: dict[str, Any]) -> None:
    rope = config_only(tmp_path, kind, **values).rope
    reference = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert rope.type == reference["rope_type"]
    assert rope.theta == reference["rope_theta"]
    assert rope.factor == reference.get("factor", 1.0)
    assert rope.original_positions == reference.get("original_max_position_embeddings", 0)
    assert (rope.beta_fast, rope.truncate) == (reference.get("beta_fast", 32.0), reference.get("truncate", True))
    if "mscale" in reference:
        assert rope.attention_factor == pytest.approx((0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1))
    else:
        assert rope.attention_factor == reference.get("attention_factor")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rope_theta": 5e5, "rope_local_base_freq": 20000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30000.0},
            }
        },
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    ],
)
def test_both_ropes_of_gemma3(tmp_path: Path, values: dict[str, Any]) -> None:
    config = config_only(tmp_path, "gemma3_text", **values)
    reference = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert config.local_rope is not None
    for rope, kind in ((config.rope, "full_attention"), (config.local_rope, "sliding_attention")):
        wanted = reference[kind]
        assert rope == RopeConfig(wanted["rope_theta"], wanted["rope_type"], wanted.get("factor", 1.0))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 32}),
        ("mistral", {}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["sliding_attention"] * 4}),
        ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2}),
    ],
)
def test_windows(tmp_path: Path, kind: str, values: dict[str, Any]) -> None:
    config = config_only(tmp_path, kind, **values)
    assert config.attention.windows == windows(AutoConfig.from_pretrained(tmp_path))


def test_numbers_that_config_leaves_out(tmp_path: Path) -> None:
    state = write_model(tmp_path, "llama", num_key_value_heads=4)
    config = config_only(tmp_path, "llama", num_key_value_heads="absent", head_dim="absent")
    assert (config.attention.num_kv_heads, config.attention.head_dim) == (4, 8)
    assert state["model.layers.0.self_attn.k_proj.weight"].shape == (32, 32)


def test_end_tokens(tmp_path: Path) -> None:
    config_only(tmp_path, "llama", eos_token_id=7)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert open_safetensors(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert open_safetensors(tmp_path).eos_token_ids == (3, 5)


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        ("llama", {"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = gelu"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation = gelu"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}, "short_factor"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_parameters"),
        ("mistral", {"layer_types": ["sliding_attention", "full_attention"] * 2}, "windows on some layers"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "sliding_window = None"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_native_would_get_wrong_is_named(tmp_path: Path, kind: str, values: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        config_only(tmp_path, kind, **values)
    assert str(caught.value).endswith("try --runtime hf")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": -3}, "hidden_size is -3"),
        ({"vocab_size": 41}, r"model.embed_tokens.weight has shape \[40, 32\].*\[41, 32\]"),
        ({"num_hidden_layers": 5}, "missing tensor model.layers.4.input_layernorm.weight and 8 more"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
    ],
)
def test_an_inconsistent_config_is_named(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        config_only(tmp_path, "llama", **values)


def test_damaged_directories(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        open_safetensors(tmp_path)
    write_model(tmp_path, "llama", max_shard_size="8KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    content = shards[1].read_bytes()
    for share, named in ((0.0, "cannot read"), (0.001, "truncated"), (0.5, "truncated"), (0.99, "truncated: tensor")):
        shards[1].write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ModelFileError, match=f"{shards[1].name}.*{named}|{named}.*{shards[1].name}"):
            open_safetensors(tmp_path)
    shards[1].unlink()
    with pytest.raises(ModelFileError, match="No such file"):
        open_safetensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_safetensors(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": [')
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_safetensors(tmp_path)


def test_damaged_heads(tmp_path: Path) -> None:
    write_model(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])

    def rewrite(**changes: Any) -> None:
        text = json.dumps(head | {"model.norm.weight": head["model.norm.weight"] | changes}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])

    rewrite(dtype="F8_E4M3")
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is F8_E4M3"):
        open_safetensors(tmp_path)
    rewrite(shape=[31])
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight of shape \[31\]"):
        open_safetensors(tmp_path)
    path.write_bytes(content[:8] + b"x" * size)
    with pytest.raises(ModelFileError, match="damaged"):
        open_safetensors(tmp_path)
