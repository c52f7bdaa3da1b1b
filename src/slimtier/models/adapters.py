"""Low-rank adapters of a route (LoRA, arXiv 2106.09685): a matrix W [n, k] becomes W + B·A on that route only.

On disk they are a directory that names its route and its model (`slimtier.checkpoint`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slimtier.checkpoint import CONFIG, OWN, read_checkpoint, write_checkpoint
from slimtier.errors import InputError
from slimtier.models.tensors import Codes, StoredTensor

_KIND = "route_adapters"
_A, _B = ".lora_A", ".lora_B"


class Pair(NamedTuple):
    """The adapter of a matrix [n, k]: a [r, k] and b [n, r], float32."""

    a: NDArray[np.float32]
    b: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Adapters:
    """Pairs by the name of their matrix (`model.layers.0.mlp.down_proj.weight`), all of one rank; `digest` is of the
    names and numbers, and what a `Route` calls them by."""

    pairs: Mapping[str, Pair]
    digest: str

    @classmethod
    def of(cls, pairs: Mapping[str, Pair]) -> Adapters:
        """Raises InputError for no pair, pairs that do not fit each other, and numbers that are not finite."""
        if not pairs:
            raise InputError("there is no adapter: give a pair of matrices for at least one")
        (rank, *more) = {pair.a.shape[0] for pair in pairs.values()}
        digest = hashlib.sha256()
        for name, pair in sorted(pairs.items()):
            if pair.a.ndim != 2 or pair.b.ndim != 2 or more or pair.b.shape[1] != rank:
                raise InputError(
                    f"the adapter of {name} has shapes {list(pair.a.shape)} and {list(pair.b.shape)}: "
                    "all must be [rank, k] and [n, rank] of one rank"
                )
            if not all(np.isfinite(one).all() for one in pair):
                raise InputError(f"the adapter of {name} has numbers that are not finite: train it again")
            for part in (name.encode(), *(np.ascontiguousarray(one, dtype="<f4").tobytes() for one in pair)):
                digest.update(part)
        return cls(dict(pairs), digest.hexdigest()[:16])

    @property
    def rank(self) -> int:
        return len(next(iter(self.pairs.values())).a)

    def check(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """InputError unless every pair is for one of the matrices of these shapes [n, k]."""
        for name, pair in self.pairs.items():
            mine = (pair.b.shape[0], pair.a.shape[1])
            if mine != shapes.get(name):
                its = f"is {list(shapes[name])}" if name in shapes else "is none of the model's layers"
                raise InputError(
                    f"an adapter is for a matrix {name} of shape {list(mine)}, which {its}: "
                    "train one for this model with `slimtier repair`"
                )


class MergedTensor:
    """W + B·A (satisfies `StoredTensor`): floats, whatever W is stored as."""

    def __init__(self, tensor: StoredTensor, pair: Pair) -> None:
        self.shape, self.source = tensor.shape, "F32"
        self._tensor, self._pair = tensor, pair

    def dense(self) -> NDArray[np.float32]:
        """All values, float32."""
        merged: NDArray[np.float32] = self._tensor.dense() + self._pair.b @ self._pair.a
        return merged

    def codes(self) -> Codes | None:
        """None: the sum is on no grid of codes."""
        return None


def is_adapters(path: Path) -> bool:
    """Whether the path may be a directory of adapters."""
    return (path / CONFIG).is_file()


def write_adapters(
    path: Path, adapters: Adapters, about: Mapping[str, Any], provenance: Mapping[str, Any], *, replace: bool = False
) -> None:
    """Write the directory; `about`: the model and the route, as in a route file. See `write_checkpoint` for errors."""
    tensors = {
        f"{name}{end}": one for name, pair in adapters.pairs.items() for end, one in ((_A, pair.a), (_B, pair.b))
    }
    config = {**about, "rank": adapters.rank, OWN: {"kind": _KIND}}
    write_checkpoint(path, config, tensors, provenance, replace=replace)


def read_adapters(path: Path) -> tuple[Adapters, Mapping[str, Any]]:
    """The adapters, and the config with the model and the route that they are for.

    Raises ModelFileError for what is missing or damaged, InputError for a directory of something else.
    """
    stored = read_checkpoint(path)
    kind = stored.config.get(OWN)
    if not isinstance(kind, dict) or kind.get("kind") != _KIND:
        raise InputError(f"{path} holds no adapters of a route: name a directory that `slimtier repair` wrote")
    names = {name.removesuffix(_A).removesuffix(_B) for name in stored.tensors}
    if stored.tensors.keys() != {f"{name}{end}" for name in names for end in (_A, _B)}:
        raise InputError(f"{path} has half a pair of matrices, or others: write it anew with `slimtier repair`")
    tensors = {name: tensor.dense() for name, tensor in stored.tensors.items()}
    adapters = Adapters.of({name: Pair(tensors[name + _A], tensors[name + _B]) for name in sorted(names)})
    return adapters, stored.config
