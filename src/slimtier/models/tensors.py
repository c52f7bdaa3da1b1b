"""Tensors as a model file stores them: dense numbers, or the integer codes of a block format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slimtier.models.config import NativeConfig


@dataclass(frozen=True, slots=True)
class Codes:
    """An [N, K] matrix as weight[n, k] = scales[n, g] * codes[n, k] + mins[n, g] with g = k // group.

    bits 4: codes uint8 in 0..15, mins given. bits 8: codes int8, mins given or None (= 0).
    scales and mins are float32 [N, ceil(K / group)] and exact: no second rounding happened.
    """

    bits: Literal[4, 8]
    group: int
    codes: NDArray[Any]
    scales: NDArray[np.float32]
    mins: NDArray[np.float32] | None


class StoredTensor(Protocol):
    """One tensor of a file, read when asked for."""

    shape: tuple[int, ...]
    source: str  # the file's own type: F32, BF16, Q4_1, ...

    def dense(self) -> NDArray[np.float32]:
        """All values in float32, exactly what the file means."""

    def codes(self) -> Codes | None:
        """The file's integer codes, or None when it stores floating-point numbers."""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A model file, opened: its config and its tensors under their transformers names
    (`model.layers.0.self_attn.q_proj.weight`, `model.norm.weight`, `lm_head.weight` only when not tied).
    Norm weights are the factor that multiplies (Gemma's stored w is returned as 1 + w)."""

    config: NativeConfig
    tensors: Mapping[str, StoredTensor]
    eos_token_ids: tuple[int, ...]
