"""Matrices of the kernels, each with the float values that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from slimtier.kernels import core
from slimtier.models.precision import quantize8


def matrix(values: torch.Tensor, kind: str) -> tuple[Any, torch.Tensor]:
    """values [n, k] packed as f32, f16, bf16 or q8, and what they were rounded to, float32."""
    if kind != "q8":
        stored = values.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]).float()
        return core.Matrix.from_floats(values.numpy(), kind), stored
    codes = quantize8(values.numpy())
    packed = core.Matrix.from_codes(codes.codes.view(np.uint8), codes.scales, None, codes.group, 8)
    scales = torch.from_numpy(codes.scales).repeat_interleave(codes.group, dim=1)[:, : values.shape[1]]
    return packed, torch.from_numpy(codes.codes.astype(np.float32)) * scales
