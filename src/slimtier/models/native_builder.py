"""From stored weights to the kernels' decoders: the target's own, and those of its routes."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slimtier.errors import InputError
from slimtier.kernels import available_threads, core
from slimtier.models.adapters import Adapters, MergedTensor, Pair
from slimtier.models.base import VocabWeight
from slimtier.models.config import NativeConfig
from slimtier.models.precision import Role, kernel_matrix
from slimtier.models.rope import rope_tables
from slimtier.models.rows import check_length
from slimtier.models.tensors import ModelWeights
from slimtier.types import Action, Route

_ATTENTION = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_MATRICES = _ATTENTION | _MLP
_NOT_ABOVE = {"q8": ("q8", "q4"), "q4": ("q4",)}  # kinds of matrices for which a copy at this precision is no gain


class Builder:
    """Packs the weights, several tensors at a time (numpy and the packing release the interpreter). Decoders share
    their matrices."""

    def __init__(self, weights: ModelWeights, precision: str) -> None:
        self.weights, self.precision = weights, precision
        self.kinds: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self.rounded: Counter[str] = Counter()
        self.step_bytes = 0
        self.step_macs: Counter[str] = Counter()
        self._rounded_names: set[str] = set()
        self.vocab_matrices: dict[VocabWeight, Any] = {}
        self._matrices: dict[str, Any] = {}  # of the layers, by tensor name
        self._copies: dict[tuple[str, Action, str], Any] = {}  # by tensor, precision and adapters
        self._adapters: dict[str, Adapters] = {}

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
            self.stored[matrix.stored] += matrix.n * matrix.k
            self.step_bytes += matrix.nbytes
            stored = self.weights.tensors[name].source
            if name in self._rounded_names:
                self.rounded[f"{stored} → {self.precision}"] += 1
        self.vocab_matrices = {"embedding": embedding, "head": head}
        self.step_bytes += head.nbytes
        self.step_macs = self.kinds + Counter({head.kind: head.n * head.k})
        self._matrices = matrices
        return self._decoder(matrices, head, threads)

    def adapt(self, adapters: Adapters) -> None:
        """Know the adapters that a route calls by their digest. Raises InputError for those of another model."""
        adapters.check({name: (matrix.n, matrix.k) for name, matrix in self._matrices.items()})
        self._adapters[adapters.digest] = adapters

    def decoder_on(self, route: Route, threads: Any) -> Any:
        """A decoder that runs the route. Raises InputError when it is for another number of layers, or with adapters
        that are not known."""
        check_length(route, self.weights.config.num_layers)
        if route.adapter and route.adapter not in self._adapters:
            raise InputError(f"the route has adapters {route.adapter}, which this target was not given: adapt it first")
        with ThreadPoolExecutor(min(4, available_threads())) as executor:
            actions = matrix_actions(route)
            jobs = {name: executor.submit(self._on, name, action, route.adapter) for name, action in actions}
            matrices = {name: job.result() for name, job in jobs.items()}
        return self._decoder(matrices, self._head_on(route), threads)

    def bytes_on(self, route: Route) -> tuple[int, int]:
        """Bytes of weights that a step on the route reads, and of those among them that are not the target's."""
        actions = [(name, action) for name, action in matrix_actions(route) if action != "skip"]
        read = [(self._on(name, action, route.adapter), self._matrices[name]) for name, action in actions]
        read.append((self._head_on(route), self.vocab_matrices["head"]))
        return sum(one.nbytes for one, _ in read), sum(one.nbytes for one, own in read if not one.shares(own))

    def _head_on(self, route: Route) -> Any:
        if route.head in ("full", "skip") or self.vocab_matrices["head"].kind in _NOT_ABOVE[route.head]:
            return self.vocab_matrices["head"]
        tied, own = self.weights.config.vocab.tied, self.vocab_matrices["head"]
        return self._copy("model.embed_tokens.weight" if tied else "lm_head.weight", own, route.head, "vocab")

    def _on(self, name: str, action: Action, adapter: str) -> Any:
        """The matrix a route's action stands for; the target's own where that is not above the precision asked for and
        no adapter changes it."""
        own = self._matrices[name]
        pair = self._adapters[adapter].pairs.get(name) if adapter else None
        if pair is not None and action != "skip":
            return self._adapted(name, "q8" if action == "full" else action, pair, adapter)
        if action in ("full", "skip") or own.kind in _NOT_ABOVE[action]:
            return own
        return self._copy(name, own, action, "layer")

    def _copy(self, name: str, own: Any, action: Action, role: Role) -> Any:
        if own.stored == action or (role == "vocab" and own.stored == "q8" and self.precision == "fp32"):
            return own.in_integers()  # the very codes
        if (name, action, "") not in self._copies:
            self._copies[name, action, ""] = kernel_matrix(self.weights.tensors[name], action, role)[0]
        return self._copies[name, action, ""]

    def _adapted(self, name: str, action: Action, pair: Pair, adapter: str) -> Any:
        if (name, action, adapter) not in self._copies:
            merged = MergedTensor(self.weights.tensors[name], pair)
            self._copies[name, action, adapter] = kernel_matrix(merged, action, "layer")[0]
        return self._copies[name, action, adapter]

    def _decoder(self, matrices: dict[str, Any], head: Any, threads: Any) -> Any:
        config = self.weights.config
        layers = [self._layer(i, matrices) for i in range(config.num_layers)]
        embedding, norm = self.vocab_matrices["embedding"], self._vector("model.norm.weight")
        return core.Decoder(_shape(config), embedding, head, norm, _ropes(config), layers, threads)

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


def matrix_actions(route: Route) -> list[tuple[str, Action]]:
    """What the route does with each matrix of the layers, by tensor name."""
    return [
        (f"model.layers.{i}.{name}.weight", action)
        for i, pair in enumerate(zip(route.attention, route.mlp, strict=True))
        for names, action in zip((_ATTENTION, _MLP), pair, strict=True)
        for name in names.values()
    ]


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
