"""Tensors of a draft checkpoint that are not simply floats in file order (each a `StoredTensor`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slimtier.checkpoint import integers
from slimtier.models.safetensors_file import SafeTensor
from slimtier.models.tensors import Codes, StoredTensor

GROUP = 32


@dataclass(slots=True)
class CodedTensor:
    """A matrix of 8-bit codes [N, K] and a scale for each 32 of a row, [N, ceil(K / 32)]."""

    shape: tuple[int, ...]
    source: str
    stored: SafeTensor
    scales: SafeTensor

    @classmethod
    def of(cls, codes: SafeTensor, scales: SafeTensor) -> CodedTensor:
        return cls(codes.shape, "Q8_0", codes, scales)

    def dense(self) -> NDArray[np.float32]:
        """scale * code, float32."""
        codes = self.codes()
        values: NDArray[np.float32] = np.repeat(codes.scales, GROUP, axis=1)[:, : self.shape[1]] * codes.codes
        return values

    def codes(self) -> Codes:
        """The file's codes."""
        return Codes(8, GROUP, integers(self.stored), self.scales.dense(), None)


@dataclass(slots=True)
class ReorderedTensor:
    """A matrix whose rows are those of `stored` in another `order`: row i is its row order[i]."""

    shape: tuple[int, ...]
    source: str
    stored: StoredTensor
    order: NDArray[np.intp]

    @classmethod
    def of(cls, stored: StoredTensor, order: NDArray[np.intp]) -> ReorderedTensor:
        return cls(stored.shape, stored.source, stored, order)

    def dense(self) -> NDArray[np.float32]:
        """All values, float32."""
        return self.stored.dense()[self.order]

    def codes(self) -> Codes | None:
        """The file's codes, or None when it stores floating-point numbers."""
        codes = self.stored.codes()
        if codes is None:
            return None
        return replace(codes, codes=codes.codes[self.order], scales=codes.scales[self.order])
