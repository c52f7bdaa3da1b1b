"""A GGUF file as ModelWeights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimtier.errors import UnsupportedError
from slimtier.models.config import NativeConfig
from slimtier.models.end_tokens import spelt_end_ids
from slimtier.models.expected import check_tensors
from slimtier.models.floats import READ_FLOATS
from slimtier.models.gguf_blocks import block_codes
from slimtier.models.gguf_config import gguf_config
from slimtier.models.gguf_header import BLOCK_TYPES, GgufHeader, TensorEntry, read_header
from slimtier.models.tensors import Codes, ModelWeights, StoredTensor

_BLOCK_BYTES = {name: block_bytes for name, _, block_bytes in BLOCK_TYPES.values()}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# not read as weights: the divisors of rope's frequencies, which become part of the config
_NOT_WEIGHTS = ("rope_freqs.weight",)


def open_gguf(path: Path) -> ModelWeights:
    """Open the GGUF file `path`: its head is read and every tensor checked, the weights stay on disk.

    Raises ModelFileError (missing, damaged, truncated, a tensor missing or misshapen) and UnsupportedError (an
    architecture, quantisation or rope scaling native does not run).
    """
    header = read_header(path)
    config = gguf_config(header)
    entries = {
        _transformers_name(name, config): entry for name, entry in header.tensors.items() if name not in _NOT_WEIGHTS
    }
    check_tensors(path, config, {name: entry.shape for name, entry in entries.items()})
    tensors = {name: _stored(header, entry, name, config) for name, entry in entries.items()}
    return ModelWeights(config, tensors, _end_token_ids(header))


def _end_token_ids(header: GgufHeader) -> tuple[int, ...]:
    tokens = header.strings("tokenizer.ggml.tokens")
    return spelt_end_ids(header.metadata, {token: index for index, token in enumerate(tokens)}.get)


def _transformers_name(name: str, config: NativeConfig) -> str:
    """The transformers name of a GGUF tensor; an unknown one keeps its own."""
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if found is None:
        return _TOP.get(name, name)
    layer, part, kind = found.groups()
    if part == "ffn_norm":
        here = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    else:
        here = _LAYER.get(part, "")
    return f"model.layers.{layer}.{here}.{kind}" if here else name


def _stored(header: GgufHeader, entry: TensorEntry, name: str, config: NativeConfig) -> StoredTensor:
    if len(entry.shape) == 1 and entry.type_name not in READ_FLOATS:
        raise UnsupportedError(
            f"{header.path}: native does not run a vector quantised as {entry.type_name} ({name}); try --runtime hf"
        )
    heads = {"q_proj": config.attention.num_heads, "k_proj": config.attention.num_kv_heads}.get(name.split(".")[-2], 0)
    order = _half_order(entry.shape[0], heads) if config.architecture == "llama" and heads else None
    return GgufTensor(entry.shape, entry.type_name, header.raw(entry), order)


def _half_order(rows: int, heads: int) -> NDArray[np.intp]:
    """Row numbers that undo the permutation of the llama architecture.

    Its converter interleaves the two halves of every head, so that llama.cpp may rotate neighbours; transformers
    rotates a row with the one half a head further on.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


@dataclass(slots=True)
class GgufTensor:
    """A tensor of a GGUF file: `raw` are its mapped bytes, `order` its rows in transformers' order (None: as is)."""

    shape: tuple[int, ...]
    source: str
    raw: NDArray[np.uint8]
    order: NDArray[np.intp] | None

    def dense(self) -> NDArray[np.float32]:
        """All values, float32, in memory of their own; a quantised one as ggml dequantises it, to the bit."""
        codes = self.codes()
        if codes is not None:
            return _dequantise(codes)
        values = READ_FLOATS[self.source](self.raw).reshape(self.shape)
        return values if self.order is None else values[self.order]

    def codes(self) -> Codes | None:
        """The block format's integer codes, or None for floating-point numbers."""
        if self.source in READ_FLOATS:
            return None
        blocks = self.raw.reshape(self.shape[0], -1, _BLOCK_BYTES[self.source])
        return block_codes(self.source, blocks if self.order is None else blocks[self.order])


def _dequantise(codes: Codes) -> NDArray[np.float32]:
    """scale * code + minimum, [N, K] float32; K is a multiple of the group."""
    rows, columns = codes.codes.shape
    values = np.empty((rows, columns // codes.group, codes.group), np.float32)
    np.multiply(codes.codes.reshape(values.shape), codes.scales[..., None], out=values)
    if codes.mins is not None:
        values += codes.mins[..., None]
    return values.reshape(rows, columns)
