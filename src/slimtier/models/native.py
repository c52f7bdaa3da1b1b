"""The native runtime on a CPU: a Llama-family decoder on our own kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimtier.errors import ConfigError, InputError, NonFiniteError
from slimtier.kernels import available_threads, core, pool
from slimtier.models.base import Cache, Target, TargetInfo, VocabWeight
from slimtier.models.config import NativeConfig
from slimtier.models.precision import Role, kernel_matrix
from slimtier.models.rope import rope_tables
from slimtier.models.rows import Rows
from slimtier.models.tensors import ModelWeights
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.models.resolve import ModelFiles

PRECISIONS = ("auto", "fp32", "bf16", "q8", "q4")
_PRECISION_OF_KIND = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8": "q8", "q4": "q4"}
_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


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
        built = _Builder(weights, precision)
        self.decoder = built.decoder(self.pool)
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
        cache.claim(route)
        width = self.config.hidden_size
        hidden = torch.empty((len(tokens), width))
        features = torch.empty((len(capture), len(tokens), width))
        attention = bytes(route.attention) if route else b""
        mlp = bytes(route.mlp) if route else b""
        try:
            self.decoder.forward(
                np.asarray(tokens, dtype=np.int32), cache.stores, cache.lengths, list(lengths),
                list(attention), list(mlp), list(capture), hidden.numpy(), features.numpy(),
            )  # fmt: skip
        except ValueError as error:
            raise InputError(str(error)) from None
        cache.lengths = [old + new for old, new in zip(cache.lengths, lengths, strict=True)]
        return hidden, tuple(features)

    def head(self, hidden: torch.Tensor, reduce: str = "logits") -> Any:
        """See `Target.head`."""
        rows = hidden.numpy()
        if reduce == "argmax":
            ids, values = np.empty(len(rows), dtype=np.int32), np.empty(len(rows), dtype=np.float32)
            self.decoder.argmax(rows, ids, values)
            _require_finite(bool(np.isfinite(values).all()), self.info.name)
            return ids.tolist()
        logits = torch.empty((len(rows), self.config.vocab.size))
        self.decoder.logits(rows, logits.numpy())
        # min and max are finite iff all are: half the cost of an elementwise test
        _require_finite(len(rows) == 0 or bool(torch.isfinite(torch.stack(logits.aminmax())).all()), self.info.name)
        return logits

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """See `Target.weight`: what the packed matrix means."""
        matrix = self.vocab_matrices[name]
        rows = torch.empty((matrix.n, matrix.k))
        for index, row in enumerate(rows.numpy()):
            matrix.row(index, row)
        return rows

    def topk(self, hidden: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The k largest logits [M, k], their ids [M, k] (the lower first among equals), and logsumexp [M] over the
        whole vocabulary; logits are never written."""
        found = self.decoder.topk(hidden.numpy(), k)
        shape = (len(hidden), k)
        values, logsumexp = torch.tensor(found["values"]).view(shape), torch.tensor(found["logsumexp"])
        _require_finite(bool(torch.isfinite(logsumexp).all()), self.info.name)
        return values, torch.tensor(found["ids"], dtype=torch.int64).view(shape), logsumexp


def _require_finite(finite: bool, name: str) -> None:
    if not finite:
        raise NonFiniteError(f"{name} gave logits that are not finite; check the weights, or use --precision fp32")


class _Builder:
    """Packs the weights, several tensors at a time (numpy and the packing release the interpreter)."""

    def __init__(self, weights: ModelWeights, precision: str) -> None:
        self.weights, self.precision = weights, precision
        self.kinds: Counter[str] = Counter()
        self.rounded: Counter[str] = Counter()
        self.step_bytes = 0
        self.step_macs: Counter[str] = Counter()
        self._rounded_names: set[str] = set()
        self.vocab_matrices: dict[VocabWeight, Any] = {}

    def decoder(self, threads: Any) -> Any:
        config = self.weights.config
        names = [f"model.layers.{i}.{name}.weight" for i in range(config.num_layers) for name in _MATRICES.values()]
        with ThreadPoolExecutor(min(4, available_threads())) as executor:
            jobs = {name: executor.submit(self._matrix, name, "layer") for name in names}
            embedding = self._matrix("model.embed_tokens.weight", "vocab")
            head = embedding if config.vocab.tied else self._matrix("lm_head.weight", "vocab")
            matrices = {name: job.result() for name, job in jobs.items()}
        for name, matrix in matrices.items():
            self.kinds[matrix.kind] += matrix.n * matrix.k
            self.step_bytes += matrix.nbytes
            stored = self.weights.tensors[name].source
            if name in self._rounded_names:
                self.rounded[f"{stored} → {self.precision}"] += 1
        self.vocab_matrices = {"embedding": embedding, "head": head}
        self.step_bytes += head.nbytes
        self.step_macs = self.kinds + Counter({head.kind: head.n * head.k})
        layers = [self._layer(i, matrices) for i in range(config.num_layers)]
        return core.Decoder(
            _shape(config), embedding, head, self._vector("model.norm.weight"), _ropes(config), layers, threads
        )

    def _matrix(self, name: str, role: Role) -> Any:
        matrix, rounded = kernel_matrix(self.weights.tensors[name], self.precision, role)
        if rounded:
            self._rounded_names.add(name)
        return matrix

    def _vector(self, name: str) -> Any:
        tensor = self.weights.tensors.get(name)
        return None if tensor is None else tensor.dense()

    def _layer(self, index: int, matrices: dict[str, Any]) -> dict[str, Any]:
        prefix, config = f"model.layers.{index}.", self.weights.config
        mlp_norm = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
        vectors = {
            "input_norm": "input_layernorm.weight",
            "post_attention_norm": "post_attention_layernorm.weight" if config.post_norms else "",
            "mlp_norm": f"{mlp_norm}.weight",
            "post_mlp_norm": "post_feedforward_layernorm.weight",
            **{f"{p}_norm": f"self_attn.{p}_norm.weight" for p in "qk"},
            **{f"{p}_bias": f"self_attn.{p}_proj.bias" for p in "qkv"},
        }
        window = config.attention.windows[index]
        return (
            {key: matrices[f"{prefix}{name}.weight"] for key, name in _MATRICES.items()}
            | {key: self._vector(prefix + name) for key, name in vectors.items()}
            | {"window": window, "local_rope": config.local_rope is not None and window > 0}
        )


def _shape(config: NativeConfig) -> dict[str, Any]:
    attention = config.attention
    return {
        "hidden": config.hidden_size,
        "heads": attention.num_heads,
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate": config.intermediate_size,
        "eps": config.norm_eps,
        "attention_scale": attention.scale,
        "attention_softcap": attention.softcap,
        "embedding_scale": config.vocab.embedding_scale,
        "head_softcap": config.vocab.softcap,
        "gelu": config.activation == "gelu_tanh",
    }


def _ropes(config: NativeConfig) -> list[tuple[Any, Any]]:
    ropes = [config.rope] + ([config.local_rope] if config.local_rope is not None else [])
    tables = [rope_tables(rope, config.attention.head_dim, config.max_positions) for rope in ropes]
    return [(cos.numpy(), sin.numpy()) for cos, sin in tables]
