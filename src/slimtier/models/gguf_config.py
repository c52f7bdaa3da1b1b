"""GGUF metadata -> NativeConfig, for the architectures llama, qwen2, qwen3, gemma2 and gemma3.

What a file leaves out is filled in as llama.cpp does (its `load_hparams`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.config import AttentionConfig, NativeConfig, RopeConfig, VocabConfig
from slimtier.models.gguf_header import GgufHeader, StringArray
from slimtier.models.rope_factors import llama3_rope

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
_GEMMA = ("gemma2", "gemma3")
# the layers of the 27B models, whose queries are scaled by hidden / heads, not by head_dim
_LAYERS_27B = {"gemma2": 46, "gemma3": 62}
# keys that change the arithmetic in a way native does not know
_FOREIGN_KEYS = (
    "expert_count",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "rope.scaling.yarn_log_multiplier",
    "attention.temperature_length",
)


def gguf_config(header: GgufHeader) -> NativeConfig:
    """The config of the model in `header`'s file.

    Raises UnsupportedError for an architecture or a setting native does not run, ModelFileError for a missing key.
    """
    keys = _Keys(header)
    arch = keys.architecture
    _refuse_foreign(keys, header)
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    layers = keys.integer("block_count")
    for name in ("rope.dimension_count", "attention.value_length"):
        if keys.integer(name, head_dim) != head_dim:
            raise keys.unsupported(f"{name} {keys.integer(name)} with heads of {head_dim}")
    gemma = arch in _GEMMA
    scale_dim = hidden // heads if _LAYERS_27B.get(arch) == layers else head_dim
    rope = _rope(keys, header, head_dim)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{header.path}: missing tensor token_embd.weight; fetch or convert the model again")
    return NativeConfig(
        architecture=arch,
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=layers,
        max_positions=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if gemma else "silu",
        post_norms=gemma,
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=keys.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            scale=keys.number("attention.scale", 0.0) or scale_dim**-0.5,
            windows=_windows(keys, layers),
            qkv_bias="blk.0.attn_q.bias" in header.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
            softcap=keys.number("attn_logit_softcapping", 50.0 if arch == "gemma2" else 0.0),
        ),
        rope=rope,
        vocab=VocabConfig(
            size=embedding.shape[0],
            tied="output.weight" not in header.tensors,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            softcap=keys.number("final_logit_softcapping", 30.0 if arch == "gemma2" else 0.0),
        ),
        local_rope=RopeConfig(theta=keys.number("rope.freq_base_swa", 10000.0)) if arch == "gemma3" else None,
    )


class _Keys:
    """The metadata of one architecture: keys without their prefix."""

    def __init__(self, header: GgufHeader) -> None:
        self.path: Path = header.path
        self.metadata = header.metadata
        self.architecture = str(header.metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise self.unsupported(f"architecture {self.architecture!r} (native runs {', '.join(ARCHITECTURES)})")

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path}: native does not run {what}; try --runtime hf")

    def get(self, name: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{name}")

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()  # one value a layer, all the same
        if isinstance(value, np.ndarray):
            raise self.unsupported(f"a different {name} in each layer")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelFileError(f"{self.path}: metadata {self.architecture}.{name} is {value!r}; convert it again")
        # the file rounds to float32; its shortest decimal is what the model's authors wrote (1e-05, not 9.99e-06)
        return float(str(np.float32(value))) if isinstance(value, float) else float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = int(self.number(name, default))
        if value <= 0:
            raise ModelFileError(f"{self.path}: metadata {self.architecture}.{name} is {value}; convert it again")
        return value


def _refuse_foreign(keys: _Keys, header: GgufHeader) -> None:
    for name in _FOREIGN_KEYS:
        if keys.get(name) and not isinstance(keys.get(name), StringArray):
            raise keys.unsupported(f"{keys.architecture} with {name} = {keys.get(name)!r}")
    if keys.get("attention.causal") is False:
        raise keys.unsupported("attention that is not causal")
    if "split.count" in header.metadata and header.metadata["split.count"] > 1:
        raise ModelFileError(f"{keys.path} is one part of a split file; join the parts with llama-gguf-split --merge")


def _windows(keys: _Keys, layers: int) -> tuple[int, ...]:
    """Each layer's window: Gemma 2 has it on every other layer, Gemma 3 on five of six, Mistral on all."""
    arch = keys.architecture
    if keys.get("attention.sliding_window") in (None, 0) and arch != "gemma2":
        return (0,) * layers
    window = keys.integer("attention.sliding_window", 4096)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if pattern.size != layers:
            raise ModelFileError(f"{keys.path}: sliding_window_pattern has {pattern.size} of {layers} layers")
        return tuple(window if local else 0 for local in pattern)
    if arch in _GEMMA:
        period = pattern or (2 if arch == "gemma2" else 6)
        return tuple(window if (layer + 1) % period else 0 for layer in range(layers))
    if arch != "llama":
        raise keys.unsupported(f"a sliding window in {arch}")
    return (window,) * layers


def _rope(keys: _Keys, header: GgufHeader, head_dim: int) -> RopeConfig:
    theta = keys.number("rope.freq_base", 10000.0)
    kind = keys.get("rope.scaling.type") or "none"
    factors = header.tensors.get("rope_freqs.weight")
    if factors is not None:
        values = header.raw(factors).view(np.float32) if factors.type_name == "F32" else np.zeros(0, np.float32)
        rope = llama3_rope(values, theta, head_dim)
        if rope is None or kind != "none":
            raise keys.unsupported("these rope_freqs (no llama3 scaling gives them)")
        return rope
    if kind == "none":
        old_style = keys.number("rope.scale_linear", 1.0)
        return RopeConfig(theta) if old_style == 1.0 else RopeConfig(theta, "linear", old_style)
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor)
    if kind != "yarn":
        raise keys.unsupported(f"rope scaling {kind!r}")
    # llama.cpp multiplies cos and sin by attn_factor and by 0.1 ln(factor) + 1
    magnitude = keys.number("rope.scaling.attn_factor", 1.0)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original_positions=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if magnitude == 1.0 else magnitude * (0.1 * float(np.log(factor)) + 1.0),
    )
