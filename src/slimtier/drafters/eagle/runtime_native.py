"""The drafter on our CPU kernels: a draft is one call, and shares the target's embedding matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from slimtier.drafters.eagle.load import DraftFiles, own_embedding
from slimtier.drafters.eagle.runtime import Chain, Stop, Stretch
from slimtier.errors import NonFiniteError
from slimtier.kernels import core
from slimtier.models.native import NativeTarget
from slimtier.models.precision import kernel_matrix
from slimtier.models.rope import rope_tables

DraftPrecision = Literal["fp32", "q8"]
_MATRICES = {part: f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")}
_ABSENT = ("post_attention_norm", "post_mlp_norm", "q_norm", "k_norm", "q_bias", "k_bias", "v_bias")


class NativeRuntime:
    """`core.Drafter` (satisfies `Runtime`). Like the target's, its bits for a token do not depend on the batch."""

    def __init__(self, files: DraftFiles, target: NativeTarget, precision: DraftPrecision) -> None:
        self.config = config = files.config
        self.max_positions = target.info.max_positions
        self._half = precision == "q8"
        self._pool = target.pool
        self._parts = _Parts(files, target, precision)
        cos, sin = rope_tables(config.rope, config.head_dim, self.max_positions)
        layers = [self._parts.layer(index) for index in range(config.num_layers)]
        self.head = self._parts.head()
        self.core = core.Drafter(
            self._parts.shape(), self._parts.embedding(), self._parts.matrix("fc.weight"), self._parts.norms(),
            (cos.numpy(), sin.numpy()), layers, self.head, self._pool,
        )  # fmt: skip

    def grow(self, store: core.KvStore | None, length: int, capacity: int) -> core.KvStore:
        config = self.config
        grown = core.KvStore(config.num_layers, config.num_kv_heads, config.head_dim, capacity, self._half)
        if store is not None:
            grown.copy_from(store, length)
        return grown

    def forward(self, stretches: Sequence[Stretch], fed_back: bool) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, inputs, stores, starts, counts = _packed(stretches)
        shape = (len(tokens), self.config.hidden_size)
        hidden, state = torch.empty(shape), torch.empty(shape)
        self.core.forward(tokens, inputs, not fed_back, stores, starts, counts, hidden.numpy(), state.numpy())
        lasts = torch.tensor(counts).cumsum(0) - 1
        return hidden[lasts], state[lasts]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.empty((len(hidden), self.head.vocab))
        self.head.logits(self._pool, hidden.numpy(), logits.numpy())
        return logits

    def chain(self, stretches: Sequence[Stretch], steps: Sequence[int], stop: Stop) -> list[Chain]:
        shape = (len(stretches), max(steps))
        ids = np.empty(shape, dtype=np.int32)
        chances = np.empty(shape, dtype=np.float32) if stop.looks else None
        try:
            self.core.draft(*_packed(stretches), list(steps), stop.confidence, ids, chances, stop.go_on)
        except FloatingPointError as error:
            raise NonFiniteError(str(error)) from None
        lengths = (ids >= 0).sum(1).tolist()
        return [
            Chain(tuple(ids[row, :n].tolist()), () if chances is None else tuple(chances[row, :n].tolist()))
            for row, n in enumerate(lengths)
        ]


def _packed(stretches: Sequence[Stretch]) -> tuple[Any, Any, list[core.KvStore], list[int], list[int]]:
    """Tokens [N], inputs [N, width], and of each row its store, first slot and number of slots."""
    tokens = np.array([token for stretch in stretches for token in stretch.tokens], dtype=np.int32)
    inputs = torch.cat([stretch.inputs for stretch in stretches]).contiguous().numpy()
    counts = [len(stretch.tokens) for stretch in stretches]
    return tokens, inputs, [each.store for each in stretches], [each.start for each in stretches], counts


class _Parts:
    """The pieces of a `core.Drafter`, packed from a checkpoint."""

    def __init__(self, files: DraftFiles, target: NativeTarget, precision: DraftPrecision) -> None:
        self.files, self.target, self.precision = files, target, precision

    def matrix(self, name: str) -> Any:
        return kernel_matrix(self.files.tensors[name], self.precision, "layer")[0]

    def vector(self, name: str) -> Any:
        return self.files.tensors[name].dense()

    def embedding(self) -> Any:
        """The target's own matrix, unless the draft has another."""
        matrix = self.target.vocab_matrices["embedding"]
        if "embedding" not in self.files.tensors:
            own_embedding(self.files, torch.empty(matrix.n, matrix.k, device="meta"))
            return matrix
        theirs = self.target.weight("embedding")
        return matrix if own_embedding(self.files, theirs) is theirs else self.matrix("embedding")

    def shape(self) -> dict[str, Any]:
        config = self.files.config
        return {
            "hidden": config.hidden_size,
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "intermediate": config.intermediate_size,
            "eps": config.norm_eps,
            "attention_scale": config.head_dim**-0.5,
            "attention_softcap": 0.0,
            "embedding_scale": 1.0,
            "head_softcap": 0.0,
            "gelu": False,
            "norm_before_residual": config.norms.before_residual,
            "norm_output": config.norms.output,
        }

    def norms(self) -> dict[str, Any]:
        """`features`: one norm a row, over as many equal pieces of the features."""
        norms, features = self.files.config.norms, None
        if norms.before_fc:
            features = self.vector("fc_input_norm.weight")[None]
        elif norms.fc:
            streams = range(len(self.files.config.capture))
            features = np.stack([self.vector(f"fc_norms.{stream}.weight") for stream in streams])
        final, hidden = self.vector("norm.weight"), self.vector("layers.0.hidden_norm.weight")
        return {"final": final, "hidden": hidden, "features": features}

    def layer(self, index: int) -> dict[str, Any]:
        prefix = f"layers.{index}."
        return {
            **{part: self.matrix(f"{prefix}{name}.weight") for part, name in _MATRICES.items()},
            "input_norm": self.vector(f"{prefix}input_layernorm.weight"),
            "mlp_norm": self.vector(f"{prefix}post_attention_layernorm.weight"),
            **dict.fromkeys(_ABSENT),
            "window": 0,
            "local_rope": False,
        }

    def head(self) -> Any:
        head = self.files.config.head
        if self.files.head_source != "file":
            return core.DraftHead.full(self._borrowed())
        if head.kind == "slim":
            return core.DraftHead.slim(self.matrix("head.down"), self.matrix("head.up"))
        if head.kind == "routed":
            router = self.matrix("head.router.down"), self.matrix("head.router.up")
            return core.DraftHead.routed(*router, self.matrix("head.weight"), head.size)
        if head.kind == "trimmed":
            assert self.files.ids is not None
            ids = self.files.ids.astype(np.int32)
            return core.DraftHead.trimmed(self.matrix("head.weight"), ids, head.vocab_size)
        return core.DraftHead.full(self.matrix("head.weight"))

    def _borrowed(self) -> Any:
        if self.files.head_source == "embedding":
            return self.embedding()
        return self.target.vocab_matrices["head"]
