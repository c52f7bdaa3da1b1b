"""The native runtime in torch operations, for a GPU: SDPA over a static cache, and CUDA graphs for decoding steps.

The same model as `native`, written plainly; on CPU tensors it is that runtime's naive twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from slimtier.errors import ConfigError, InputError, NonFiniteError
from slimtier.kernels import naive
from slimtier.models.base import Cache, TargetInfo, VocabWeight, reduced
from slimtier.models.config import NativeConfig
from slimtier.models.rope import rope_tables
from slimtier.models.rows import Rows, normal_route, refuse_precisions
from slimtier.models.tensors import ModelWeights
from slimtier.types import Route

_MOST_GRAPH_TOKENS = 16  # steps of at most this many tokens a row are worth a CUDA graph


class TorchCache(Rows):
    """Keys and values [layers, rows, kv_heads, capacity + 1, head_dim]; the last slot takes what padding writes."""

    def __init__(self, config: NativeConfig, rows: int, capacity: int, like: torch.Tensor) -> None:
        super().__init__(rows)
        attention = config.attention
        shape = (config.num_layers, rows, attention.num_kv_heads, capacity + 1, attention.head_dim)
        self.keys = like.new_zeros(shape)
        self.values = like.new_zeros(shape)
        self.capacity = capacity

    def _take(self, rows: Sequence[int]) -> None:
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys.device)
        self.keys, self.values = self.keys[:, index], self.values[:, index]


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of one pass over rows padded to T tokens: tokens, positions and slots (of the cache) [rows, T]."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class TorchTarget:
    """A Llama-family model on torch operations (satisfies `Target`)."""

    def __init__(
        self, weights: ModelWeights, *, name: str, precision: str = "auto", device: str | torch.device = "cuda"
    ) -> None:
        self.device = torch.device(device)
        if precision == "auto":
            precision = "bf16" if self.device.type == "cuda" else "fp32"
        if precision not in ("fp32", "bf16"):
            raise ConfigError(f"on {self.device.type} native runs fp32 or bf16, not {precision}; choose one of them")
        self.config = config = weights.config
        self.dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        self.weights = {n: self._place(torch.from_numpy(t.dense())) for n, t in weights.tensors.items()}
        self.ropes = [
            tuple(table.to(self.device) for table in rope_tables(rope, config.attention.head_dim, config.max_positions))
            for rope in (config.rope, config.local_rope or config.rope)
        ]
        self._graphs: dict[Any, Callable[[Step], tuple[torch.Tensor, ...]]] = {}
        self._graphs_of: int | None = None  # id of the cache tensors that the graphs were captured on
        self.info = TargetInfo(
            name=name,
            runtime="native",
            precision=precision,
            vocab_size=config.vocab.size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            max_positions=config.max_positions,
            eos_token_ids=weights.eos_token_ids,
            exact=False,
            weight_bytes=sum(w.nbytes for w in self.weights.values()),
        )

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        # norms stay float32: they are small, and their products are rounded once
        return tensor.to(self.device, self.dtype if tensor.dim() == 2 else torch.float32)

    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> TorchCache:
        """An empty cache of `num_rows` rows for `capacity` tokens each, allocated at once."""
        if inputs is not None:
            raise InputError("this model has no encoder; put the prompt into the tokens")
        like = self.weights["model.embed_tokens.weight"]
        return TorchCache(self.config, num_rows, min(capacity, self.config.max_positions), like)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """See `Target.forward`; rows are padded to the longest for the pass and unpadded after it."""
        assert isinstance(cache, TorchCache)
        if any(old + new > cache.capacity for old, new in zip(cache.lengths, lengths, strict=True)):
            raise InputError("a row is longer than its cache or the model's positions")
        route = normal_route(route, self.config.num_layers)
        refuse_precisions(route, "torch")
        cache.claim(lengths, route)
        if not tokens:
            empty = torch.zeros(0, self.config.hidden_size, device=self.device)
            return empty, tuple(empty for _ in capture)
        step, real = self._pad(tokens, cache, lengths)
        states = self._run(step, cache, route, tuple(capture))
        cache.append(lengths, route)
        hidden, *features = (state[real].float() for state in states)
        return hidden, tuple(features)

    def _pad(self, tokens: Sequence[int], cache: TorchCache, lengths: Sequence[int]) -> tuple[Step, torch.Tensor]:
        count = torch.tensor(list(lengths))[:, None]
        offsets = torch.arange(max(lengths))[None, :]
        real = offsets < count
        padded = torch.zeros(real.shape, dtype=torch.long)
        padded[real] = torch.tensor(list(tokens))
        positions = torch.where(real, torch.tensor(cache.lengths)[:, None] + offsets, 0)
        slots = torch.where(real, positions, cache.capacity)
        return Step(*(t.to(self.device) for t in (padded, positions, slots))), real.to(self.device)

    def _run(
        self, step: Step, cache: TorchCache, route: Route | None, capture: tuple[int, ...]
    ) -> tuple[torch.Tensor, ...]:
        if self.device.type != "cuda" or step.tokens.shape[1] > _MOST_GRAPH_TOKENS:
            return self._layers(step, cache, route, capture)
        if self._graphs_of != cache.keys.data_ptr():
            self._graphs, self._graphs_of = {}, cache.keys.data_ptr()
        key = (tuple(step.tokens.shape), route, capture)
        if key not in self._graphs:
            self._graphs[key] = captured(lambda s: self._layers(s, cache, route, capture), step)
        return self._graphs[key](step)

    def _layers(
        self, step: Step, cache: TorchCache, route: Route | None, capture: tuple[int, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The final hidden states and the captured residual streams, [rows, T, hidden]."""
        config = self.config
        x = self.weights["model.embed_tokens.weight"][step.tokens].float() * config.vocab.embedding_scale
        route = route or Route.full(config.num_layers)
        features = {}
        for layer in range(config.num_layers):
            if route.runs_attention[layer]:
                x = x + self._post(self._attention(x, layer, step, cache), layer, "post_attention_layernorm")
            if route.runs_mlp[layer]:
                x = x + self._post(self._mlp(x, layer), layer, "post_feedforward_layernorm")
            if layer in capture:
                features[layer] = x
        return (self._norm(x, "model.norm.weight"), *(features[layer] for layer in capture))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return naive.rms_norm(x, self.weights[name], self.config.norm_eps)

    def _post(self, y: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        return self._norm(y, f"model.layers.{layer}.{name}.weight") if self.config.post_norms else y

    def _project(self, x: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        prefix = f"model.layers.{layer}.{name}"
        y = functional.linear(x.to(self.dtype), self.weights[f"{prefix}.weight"]).float()
        bias = self.weights.get(f"{prefix}.bias")
        return y if bias is None else y + bias

    def _attention(self, x: torch.Tensor, layer: int, step: Step, cache: TorchCache) -> torch.Tensor:
        attention = self.config.attention
        window = attention.windows[layer]
        x = self._norm(x, f"model.layers.{layer}.input_layernorm.weight")
        heads = (*x.shape[:-1], -1, attention.head_dim)
        q, k, v = (self._project(x, layer, f"self_attn.{p}_proj").view(heads) for p in "qkv")
        if attention.qk_norm:
            q, k = (self._norm(a, f"model.layers.{layer}.self_attn.{n}_norm.weight") for a, n in ((q, "q"), (k, "k")))
        cos, sin = self.ropes[1 if window else 0]
        cos, sin = cos[step.positions][:, :, None], sin[step.positions][:, :, None]
        q, k = naive.rope(q, cos, sin) * attention.scale, naive.rope(k, cos, sin)
        rows = torch.arange(q.shape[0], device=self.device)[:, None]
        cache.keys[layer][rows, :, step.slots] = k.to(self.dtype)
        cache.values[layer][rows, :, step.slots] = v.to(self.dtype)
        y = self._attend(q.transpose(1, 2), cache.keys[layer], cache.values[layer], step.positions, window)
        return self._project(y.transpose(1, 2).flatten(2), layer, "self_attn.o_proj")

    def _attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, window: int
    ) -> torch.Tensor:
        """q [rows, heads, T, d] over keys and values [rows, kv_heads, capacity + 1, d]; returns q's shape."""
        key = torch.arange(keys.shape[2], device=self.device)[None, None, :]
        seen = key <= positions[:, :, None]
        if window:
            seen = seen & (key > positions[:, :, None] - window)
        mask, cap = seen[:, None], self.config.attention.softcap
        q = q.to(self.dtype)
        if not cap:
            return functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=1.0, enable_gqa=True
            ).float()
        group = q.shape[1] // keys.shape[1]
        scores = naive.softcap((q @ keys.repeat_interleave(group, 1).transpose(2, 3)).float(), cap)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return (weights.to(self.dtype) @ values.repeat_interleave(group, 1)).float()

    def _mlp(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        name = "pre_feedforward_layernorm" if self.config.post_norms else "post_attention_layernorm"
        x = self._norm(x, f"model.layers.{layer}.{name}.weight")
        gate, up = self._project(x, layer, "mlp.gate_proj"), self._project(x, layer, "mlp.up_proj")
        return self._project(naive.act_mul(gate, up, self.config.activation == "gelu_tanh"), layer, "mlp.down_proj")

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor, reduce: str = "logits") -> Any:
        """See `Target.head`."""
        weight = self.weights["model.embed_tokens.weight" if self.config.vocab.tied else "lm_head.weight"]
        logits = functional.linear(hidden.to(self.device, self.dtype), weight).float()
        logits = naive.softcap(logits, self.config.vocab.softcap)
        if not bool(logits.isfinite().all()):
            raise NonFiniteError(f"{self.info.name} gave logits that are not finite; check the weights, or use fp32")
        return reduced(logits, reduce)

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """See `Target.weight`."""
        tied = name == "embedding" or self.config.vocab.tied
        return self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"].float()


def captured(
    function: Callable[[Step], tuple[torch.Tensor, ...]], step: Step
) -> Callable[[Step], tuple[torch.Tensor, ...]]:
    """A CUDA graph of function(step), replayed on later steps of the same shape."""
    held = Step(*(t.clone() for t in (step.tokens, step.positions, step.slots)))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy initialisation must not be captured
        function(held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(held)

    def replay(new: Step) -> tuple[torch.Tensor, ...]:
        for own, given in (
            (held.tokens, new.tokens),
            (held.positions, new.positions),
            (held.slots, new.slots),
        ):
            own.copy_(given)
        graph.replay()
        return tuple(output.clone() for output in outputs)

    return replay
