"""The native runtime on a CPU: a Llama-family decoder on our own kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimtier.errors import ConfigError, InputError, NonFiniteError
from slimtier.kernels import available_threads, core, pool
from slimtier.models.adapters import Adapters
from slimtier.models.base import Cache, Target, TargetInfo, VocabWeight
from slimtier.models.native_builder import Builder
from slimtier.models.rows import Rows, normal_route
from slimtier.models.tensors import ModelWeights
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.models.resolve import ModelFiles

PRECISIONS = ("auto", "fp32", "bf16", "q8", "q4")
_MOST_ROUTES = 32  # whose decoders are kept; a search goes through hundreds
_PRECISION_OF_KIND = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8": "q8", "q4": "q4"}


def open_weights(files: ModelFiles) -> ModelWeights:
    """Open a GGUF file or a directory of safetensors; everything is checked, nothing is read yet."""
    if files.kind == "gguf":
        from slimtier.models.gguf_file import open_gguf

        return open_gguf(files.path)
    from slimtier.models.safetensors_file import open_safetensors

    return open_safetensors(files.path)


def load_native(
    files: ModelFiles, *, precision: str = "auto", threads: int | None = None, device: str = "cpu"
) -> Target:
    """The native runtime for `device`: our kernels on a CPU, torch operations elsewhere."""
    weights = open_weights(files)
    if device == "cpu":
        return NativeTarget(weights, name=files.name, precision=precision, threads=threads)
    from slimtier.models.native_torch import TorchTarget

    return TorchTarget(weights, name=files.name, precision=precision, device=device)


class NativeCache(Rows):
    """Keys and values of a batch of rows, one store a row."""

    def __init__(self, stores: list[Any], new_store: Any) -> None:
        super().__init__(len(stores))
        self.stores = stores
        self._new_store = new_store

    def _take(self, rows: Sequence[int]) -> None:
        stores: list[Any] = []
        for index, row in enumerate(rows):
            store = self.stores[row]
            if row in rows[:index]:  # a row named again is copied
                store = self._new_store(store.capacity)
                store.copy_from(self.stores[row], self.lengths[row])
            stores.append(store)
        self.stores = stores


class NativeTarget:
    """A Llama-family model on a CPU (satisfies `Target`): the same bits for a token whatever T, batch or chunking."""

    def __init__(
        self, weights: ModelWeights, *, name: str, precision: str = "auto", threads: int | None = None
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
        self.config = weights.config
        self.pool = pool(threads if threads is not None else available_threads())
        self._builder = built = Builder(weights, precision)
        self.decoder = built.decoder(self.pool)
        self._slim_decoders: dict[Route, Any] = {}
        self.vocab_matrices = built.vocab_matrices
        self.rounded = built.rounded  # how many matrices were rounded again, by "stored type → precision"
        self.step_macs = built.step_macs  # multiply-adds of a token's pass, by kind of weights
        kind = built.kinds.most_common(1)[0][0]
        self._half_cache = kind in ("q8", "q4")
        self.info = TargetInfo(
            name=name,
            runtime="native",
            precision=_PRECISION_OF_KIND[kind] if precision == "auto" else precision,
            vocab_size=self.config.vocab.size,
            hidden_size=self.config.hidden_size,
            num_layers=self.config.num_layers,
            max_positions=self.config.max_positions,
            eos_token_ids=weights.eos_token_ids,
            exact=True,
            weight_bytes=built.step_bytes,
            stored=built.stored.most_common(1)[0][0],
        )

    @classmethod
    def from_pretrained(cls, files: ModelFiles, **options: Any) -> Target:
        """See `load_native`."""
        return load_native(files, **options)

    def _new_store(self, capacity: int) -> Any:
        attention = self.config.attention
        return core.KvStore(
            self.config.num_layers, attention.num_kv_heads, attention.head_dim, capacity, self._half_cache
        )

    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> NativeCache:
        """An empty cache of `num_rows` rows for `capacity` tokens each; memory is used as rows grow."""
        if inputs is not None:
            raise InputError("this model has no encoder; put the prompt into the tokens")
        capacity = min(capacity, self.config.max_positions)
        return NativeCache([self._new_store(capacity) for _ in range(num_rows)], self._new_store)

    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """See `Target.forward`. Raises InputError when a row outgrows its cache or a token id is unknown."""
        assert isinstance(cache, NativeCache)
        route = normal_route(route, self.config.num_layers)
        cache.claim(lengths, route)
        width = self.config.hidden_size
        hidden = torch.empty((len(tokens), width))
        features = torch.empty((len(capture), len(tokens), width))
        attention, mlp = (route.runs_attention, route.runs_mlp) if route else ((), ())
        try:
            self._decoder_on(route).forward(
                np.asarray(tokens, dtype=np.int32), cache.stores, cache.lengths, list(lengths),
                list(attention), list(mlp), list(capture), hidden.numpy(), features.numpy(),
            )  # fmt: skip
        except ValueError as error:
            raise InputError(str(error)) from None
        cache.append(lengths, route)
        return hidden, tuple(features)

    def _decoder_on(self, route: Route | None) -> Any:
        """The decoder that runs a route: the target's own, or one of the same embeddings and norms with low-precision
        copies of the matrices where the route wants them, made when it is first asked for."""
        if route is None:
            return self.decoder
        if route not in self._slim_decoders:
            if len(self._slim_decoders) == _MOST_ROUTES:
                del self._slim_decoders[next(iter(self._slim_decoders))]  # made again if it is asked for
            self._slim_decoders[route] = self._builder.decoder_on(route, self.pool)
        return self._slim_decoders[route]

    def adapt(self, adapters: Adapters) -> None:
        """Know the adapters of routes whose `adapter` is their digest; the target itself stays what it is. Raises
        InputError for those of another model."""
        self._builder.adapt(adapters)

    def route_bytes(self, route: Route) -> tuple[int, int]:
        """Bytes of weights that a step on the route reads, and of those among them that are copies made for it."""
        self._decoder_on(route)
        return self._builder.bytes_on(route)

    def head(self, hidden: torch.Tensor, reduce: str = "logits", *, route: Route | None = None) -> Any:
        """See `Target.head`."""
        rows = hidden.numpy()
        decoder = self._decoder_on(route)
        if reduce != "logits":
            ids, values = np.empty(len(rows), dtype=np.int32), np.empty((2, len(rows)), dtype=np.float32)
            decoder.argmax(rows, ids, values[0], values[1] if reduce == "best two" else None)
            _require_finite(bool(np.isfinite(values[0]).all()), self.info.name)
            return (ids.tolist(), torch.from_numpy(values)) if reduce == "best two" else ids.tolist()
        logits = torch.empty((len(rows), self.config.vocab.size))
        decoder.logits(rows, logits.numpy())
        # min and max are finite iff all are: half the cost of an elementwise test
        _require_finite(len(rows) == 0 or all(math.isfinite(end) for end in logits.aminmax()), self.info.name)
        return logits

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """See `Target.weight`: what the packed matrix means."""
        matrix = self.vocab_matrices[name]
        rows = torch.empty((matrix.n, matrix.k))
        for index, row in enumerate(rows.numpy()):
            matrix.row(index, row)
        return rows

    def topk(
        self, hidden: torch.Tensor, k: int, *, route: Route | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The k largest logits [M, k], their ids [M, k] (the lower first among equals), and logsumexp [M] over the
        whole vocabulary; logits are never written."""
        found = self._decoder_on(route).topk(hidden.numpy(), k)
        shape = (len(hidden), k)
        values, logsumexp = torch.tensor(found["values"]).view(shape), torch.tensor(found["logsumexp"])
        _require_finite(bool(torch.isfinite(logsumexp).all()), self.info.name)
        return values, torch.tensor(found["ids"], dtype=torch.int64).view(shape), logsumexp


def _require_finite(finite: bool, name: str) -> None:
    if not finite:
        raise NonFiniteError(f"{name} gave logits that are not finite; check the weights, or use --precision fp32")
