"""Which tensors a model of a given config has, under their transformers names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.config import NativeConfig


def expected_tensors(config: NativeConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `config` needs; matrices are [out, in]."""
    hidden, vocab = config.hidden_size, config.vocab.size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.vocab.tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _layer_tensors(config: NativeConfig) -> dict[str, tuple[int, ...]]:
    attention, hidden, wide = config.attention, config.hidden_size, config.intermediate_size
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }
    if attention.qkv_bias:
        shapes |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", queries), ("k", keys), ("v", keys))}
    if attention.qk_norm:
        shapes |= {f"self_attn.{p}_norm.weight": (attention.head_dim,) for p in "qk"}
    if config.post_norms:
        shapes |= {f"{side}_feedforward_layernorm.weight": (hidden,) for side in ("pre", "post")}
    return shapes


def check_tensors(path: Path, config: NativeConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare what the file at `path` holds with what `config` needs, before anything is read.

    Raises ModelFileError for a missing tensor or a wrong shape, UnsupportedError for one that would be ignored.
    """
    expected = expected_tensors(config)
    for name, shape in expected.items():
        if name not in shapes:
            missing = sum(other not in shapes for other in expected)
            more = f" and {missing - 1} more" if missing > 1 else ""
            raise ModelFileError(f"{path}: missing tensor {name}{more}; fetch or convert the model again")
        if shapes[name] != shape:
            raise ModelFileError(
                f"{path}: tensor {name} has shape {list(shapes[name])}, its config asks for {list(shape)}; "
                "fetch or convert the model again"
            )
    extra = [name for name in shapes if name not in expected]
    if extra:
        raise UnsupportedError(
            f"{path}: native does not know tensor {extra[0]} ({len(extra)} such) of a {config.architecture} model; "
            "try --runtime hf"
        )
