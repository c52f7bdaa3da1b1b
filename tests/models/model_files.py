"""Tiny model files for tests: GGUF files of any quantisation and architecture, with their tensors as written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize, quantize

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 256, 512, 4, 2, 64, 2, 32
GEMMA = ("gemma2", "gemma3")
_K_SCALE_BYTES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82)}  # where a block's fp16 lie


def random_blocks(type_name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Rows of blocks of a quantised type as bytes, [rows, bytes]: quantised normal numbers, or random K-quant bits."""
    rng = np.random.default_rng(seed)
    kind = GGMLQuantizationType[type_name]
    if type_name not in _K_SCALE_BYTES:
        return quantize(rng.normal(size=(rows, columns)).astype(np.float32), kind)
    block, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in _K_SCALE_BYTES[type_name]:
        scales = rng.normal(size=blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders q and k of the llama architecture."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@dataclass
class Recipe:
    """What to write: `meta` overrides or adds metadata (without the architecture's prefix; None leaves a key out),
    `drop` and `extra` take tensors away and add them (of type `extra_type`)."""

    arch: str = "llama"
    type_name: str = "Q4_1"
    meta: dict[str, Any] = field(default_factory=dict)
    tied: bool = True
    drop: tuple[str, ...] = ()
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    extra_type: str = "F32"


def write_gguf(path: Path, recipe: Recipe) -> dict[str, np.ndarray]:
    """Write the file; return every tensor dense, float32, under its GGUF name and with transformers' row order."""
    writer = GGUFWriter(path, recipe.arch)
    for key, value in (_metadata(recipe.arch) | recipe.meta).items():
        _add(writer, key if key.startswith("tokenizer.") else f"{recipe.arch}.{key}", value)
    wanted = {}
    for index, (name, shape) in enumerate(_shapes(recipe).items()):
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2], 0) if recipe.arch == "llama" else 0
        if len(shape) == 1:
            dense = stored = np.random.default_rng(index).normal(size=shape).astype(np.float32)
            stored = interleaved(stored, heads) if heads else stored
            writer.add_tensor(name, stored)
        else:
            dense = _add_matrix(writer, name, shape, recipe.type_name, heads, index)
        wanted[name] = dense
    for name, values in recipe.extra.items():
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType[recipe.extra_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


def _add_matrix(
    writer: GGUFWriter, name: str, shape: tuple[int, int], type_name: str, heads: int, seed: int
) -> np.ndarray:
    kind = GGMLQuantizationType[type_name]
    if type_name in ("F32", "F16"):
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32 if type_name == "F32" else np.float16)
        writer.add_tensor(name, interleaved(values, heads) if heads else values)
        return values.astype(np.float32)
    if type_name == "BF16":
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        rows = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(shape[0], -1)
    else:
        rows = random_blocks(type_name, *shape, seed=seed)
    writer.add_tensor(name, interleaved(rows, heads) if heads else rows, raw_dtype=kind)
    return dequantize(rows, kind)


def _metadata(arch: str) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": WIDE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "tokenizer.ggml.eos_token_id": 2,
    }
    if arch in GEMMA:
        meta |= {"attention.key_length": HEAD_DIM, "attention.sliding_window": 16}
    return meta


def _shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not recipe.tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (queries, HIDDEN),
        "attn_k.weight": (keys, HIDDEN),
        "attn_v.weight": (keys, HIDDEN),
        "attn_output.weight": (HIDDEN, queries),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (WIDE, HIDDEN),
        "ffn_up.weight": (WIDE, HIDDEN),
        "ffn_down.weight": (HIDDEN, WIDE),
    }
    if recipe.arch == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if recipe.arch in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    if recipe.arch in GEMMA:
        layer |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.{index}.{name}": shape for index in range(LAYERS) for name, shape in layer.items()}
    return {name: shape for name, shape in shapes.items() if name not in recipe.drop}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
