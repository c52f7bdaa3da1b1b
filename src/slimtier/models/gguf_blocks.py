"""GGML block formats as integer codes with float32 scales and minima.

Layouts: ggml's `block_q4_0` ... `block_q6_K` (ggml-common.h). In each, code times scale is exact in float32 (an fp16
scale, at most 8 bits of sub-scale and 5 of code), so scale * code + minimum rounds once, as ggml's own dequantisation
does: the two agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimtier.models.tensors import Codes

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]


def block_codes(type_name: str, blocks: _Bytes) -> Codes:
    """The codes of a matrix of a quantised type, from its `blocks` [N, blocks a row, bytes a block]."""
    return _UNPACK[type_name](blocks)


def _fp16(blocks: _Bytes, start: int) -> _Floats:
    """The fp16 at byte `start` of every block, [N, B] in float32."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(packed: _Bytes) -> _Bytes:
    """[N, B, P, h] bytes -> [N, B, P, 2, h]: all low nibbles of a run of h bytes, then its high ones."""
    packed = np.ascontiguousarray(packed)
    out = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])
    return out


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    """[N, ...] -> [N, everything else]."""
    return np.ascontiguousarray(values.reshape(values.shape[0], -1))


def _q4_0(blocks: _Bytes) -> Codes:
    scales = _fp16(blocks, 0)
    return Codes(4, 32, _rows(_nibbles(blocks[..., None, 2:])), scales, np.float32(-8) * scales)


def _q4_1(blocks: _Bytes) -> Codes:
    return Codes(4, 32, _rows(_nibbles(blocks[..., None, 4:])), _fp16(blocks, 0), _fp16(blocks, 2))


def _fifth_bits(blocks: _Bytes, start: int) -> _Bytes:
    """[N, B, 32]: bit 4 of each code, from the 32 bits at byte `start`, in place (0 or 16)."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., start : start + 4]), axis=-1, bitorder="little")
    return np.left_shift(bits, 4, out=bits)


def _q5(blocks: _Bytes, start: int) -> _Bytes:
    """[N, B, 32] codes 0..31 of a Q5 block whose high bits begin at byte `start`."""
    low = _nibbles(blocks[..., None, start + 4 :]).reshape(*blocks.shape[:2], 32)
    return np.bitwise_or(low, _fifth_bits(blocks, start), out=low)


def _q5_0(blocks: _Bytes) -> Codes:
    codes = _q5(blocks, 2).view(np.int8) - np.int8(16)
    return Codes(8, 32, _rows(codes), _fp16(blocks, 0), None)


def _q5_1(blocks: _Bytes) -> Codes:
    return Codes(8, 32, _rows(_q5(blocks, 4).view(np.int8)), _fp16(blocks, 0), _fp16(blocks, 2))


def _q8_0(blocks: _Bytes) -> Codes:
    return Codes(8, 32, _rows(blocks[..., 2:]).view(np.int8), _fp16(blocks, 0), None)


def _k_scales(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """Scales and minima [N, 8 B] of Q4_K and Q5_K: 6-bit factors of the block's fp16 d and dmin."""
    packed = blocks[..., 4:16]  # bytes 0-3: scale 0-3, 4-7: minimum 0-3, 8-11: low nibbles of 4-7; top bits: the rest
    low, high, mixed = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = np.concatenate([low & 63, (mixed & 15) | ((low >> 2) & 48)], axis=-1)
    minimum = np.concatenate([high & 63, (mixed >> 4) | ((high >> 2) & 48)], axis=-1)
    scales = _fp16(blocks, 0)[..., None] * scale.astype(np.float32)
    minima = _fp16(blocks, 2)[..., None] * minimum.astype(np.float32)
    return _rows(scales), _rows(-minima)


def _q4_k(blocks: _Bytes) -> Codes:
    scales, mins = _k_scales(blocks)
    return Codes(4, 32, _rows(_nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))), scales, mins)


def _q5_k(blocks: _Bytes) -> Codes:
    scales, mins = _k_scales(blocks)
    codes = _nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    high = np.ascontiguousarray(blocks[..., 16:48])  # bit j of byte l: the fifth bit of code l of group j
    for group in range(8):
        codes[..., group, :] |= ((high >> group) & 1) << 4
    return Codes(8, 32, _rows(codes).view(np.int8), scales, mins)


def _q6_k(blocks: _Bytes) -> Codes:
    shape = blocks.shape[:2]
    codes = np.empty((*shape, 2, 4, 32), np.uint8)  # halves of 128 values, each four runs of 32
    # low nibbles of a half's 64 bytes are runs 0 and 1, high nibbles runs 2 and 3
    codes[...] = _nibbles(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    high = np.ascontiguousarray(blocks[..., 128:192]).reshape(*shape, 2, 32)
    for run in range(4):
        codes[..., run, :] |= ((high >> (2 * run)) & 3) << 4
    sub_scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    scales = _fp16(blocks, 208)[..., None] * sub_scales
    return Codes(8, 16, _rows(codes.view(np.int8) - np.int8(32)), _rows(scales), None)


_UNPACK: dict[str, Callable[[_Bytes], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
