"""What a stored tensor becomes when a model runs at a precision.

| asked | float tensor | 8-bit codes | 4-bit codes |
| --- | --- | --- | --- |
| auto | as stored | taken over | taken over |
| fp32 | converted | taken over, but multiplied as what they mean | likewise |
| bf16 | converted | the codes' values, rounded | likewise |
| q8 | rounded to groups of 32 | taken over | taken over as 8-bit codes, exact |
| q4 (layers) | rounded to groups of 32 | rounded again | taken over |
| q4 (embedding, head) | rounded to 8 bits | taken over | taken over |
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slimtier.kernels import core
from slimtier.models.tensors import Codes, StoredTensor

Role = Literal["layer", "vocab"]
_FLOAT_KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_GROUP = 32


def kernel_matrix(tensor: StoredTensor, precision: str, role: Role) -> tuple[Any, bool]:
    """The kernels' matrix for `tensor`, and whether integer codes or floats were rounded (again) on the way."""
    codes = tensor.codes()
    if precision == "fp32" and codes is not None:
        return _from_codes(codes).in_floats(), False
    if precision in ("fp32", "bf16"):
        return core.Matrix.from_floats(tensor.dense(), "f32" if precision == "fp32" else "bf16"), False
    if precision == "auto":
        if codes is not None:
            return _from_codes(codes), False
        return core.Matrix.from_floats(tensor.dense(), _FLOAT_KINDS[tensor.source]), False
    bits = 4 if precision == "q4" and role == "layer" else 8
    if codes is not None and codes.bits <= bits:
        return _from_codes(codes if precision == "q4" else _widened(codes)), False
    if codes is not None and role == "vocab":
        return _from_codes(codes), False
    return _from_codes(quantize4(tensor.dense()) if bits == 4 else quantize8(tensor.dense())), True


def _from_codes(codes: Codes) -> Any:
    return core.Matrix.from_codes(codes.codes.view(np.uint8), codes.scales, codes.mins, codes.group, codes.bits)


def _widened(codes: Codes) -> Codes:
    return Codes(8, codes.group, codes.codes.astype(np.int8), codes.scales, codes.mins)


def _grouped(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, K] as [N, groups, 32], the last group filled up with its row's last value (which moves no extreme)."""
    fill = -values.shape[1] % _GROUP
    padded = np.pad(values, ((0, 0), (0, fill)), mode="edge") if fill else values
    return padded.reshape(values.shape[0], -1, _GROUP)


def _halves(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to float16, as scales are stored."""
    return values.astype(np.float16).astype(np.float32)


def quantize8(values: NDArray[np.float32]) -> Codes:
    """[N, K] float32 to int8 codes in groups of 32: scale = max|w| / 127 (what GGUF calls Q8_0)."""
    groups = _grouped(values)
    scales = _halves(np.abs(groups).max(axis=2) / np.float32(127.0))
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return Codes(8, _GROUP, _ungrouped(codes, values.shape), scales, None)


def quantize4(values: NDArray[np.float32]) -> Codes:
    """[N, K] float32 to codes 0..15 in groups of 32 between the group's extremes (what GGUF calls Q4_1)."""
    groups = _grouped(values)
    mins = _halves(groups.min(axis=2))
    scales = _halves((groups.max(axis=2) - mins) / np.float32(15.0))
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.clip(np.rint((groups - mins[..., None]) * inverse[..., None]), 0, 15).astype(np.uint8)
    return Codes(4, _GROUP, _ungrouped(codes, values.shape), scales, mins)


def _ungrouped(codes: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(codes.reshape(shape[0], -1)[:, : shape[1]])
