"""Drafts of random weights, in memory: as fast as trained ones of the same shape, and good for nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, default_capture
from slimtier.drafters.eagle.layouts import network_shapes
from slimtier.drafters.eagle.load import DraftFiles
from slimtier.models.config import NativeConfig
from slimtier.models.tensors import Codes

_GROUP = 32
_SPREAD = 0.02  # standard deviation of the weights


@dataclass(slots=True)
class RandomTensor:
    """A matrix [N, K] of random numbers, floats and, if `coded`, 8-bit codes; a vector is all ones."""

    shape: tuple[int, ...]
    seed: int
    source: str = "F32"
    coded: bool = True

    def dense(self) -> NDArray[np.float32]:
        """Float32, drawn anew each time."""
        if len(self.shape) == 1:
            return np.ones(self.shape, dtype=np.float32)
        values = np.random.default_rng(self.seed).random(self.shape, dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(_SPREAD * 12**0.5)  # the deviation of a uniform number is width / √12
        return values

    def codes(self) -> Codes | None:
        """Codes in groups of 32 without a second rounding: nothing of the size of the matrix in floats is made."""
        if len(self.shape) == 1 or not self.coded:
            return None
        rows, columns = self.shape
        codes = np.random.default_rng(self.seed).integers(-127, 128, self.shape, dtype=np.int8)
        scale = np.float32(_SPREAD * 12**0.5 / 255)
        return Codes(8, _GROUP, codes, np.full((rows, -(-columns // _GROUP)), scale, dtype=np.float32), None)


def random_files(config: EagleConfig, coded: bool, seed: int = 0) -> DraftFiles:
    """A draft of `config` as if it had been read from a directory, with codes or with floats."""
    shapes, head = network_shapes(config), config.head
    tensors = {name: RandomTensor(shape, seed + i, coded=coded) for i, (name, shape) in enumerate(shapes.items())}
    return DraftFiles(
        path=Path("random"),
        layout="eagle",
        config=config,
        tensors=tensors,
        ids=np.arange(head.size, dtype=np.int64) if head.kind == "trimmed" else None,
        head_source="file",
        max_positions=0,
        target=None,
        provenance={},
        notes=(),
    )


def eagle_shape(model: NativeConfig, head: HeadConfig) -> EagleConfig:
    """The EAGLE-3 drafter that is usual for `model`: one layer in its own dimensions, on three of its layers."""
    attention, last = model.attention, model.num_layers - 1
    return EagleConfig(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_layers=1,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        target_hidden_size=model.hidden_size,
        capture=tuple(min(max(layer, 0), last) for layer in default_capture(model.num_layers)),
        norm_eps=model.norm_eps,
        rope=model.rope,
        head=head,
    )
