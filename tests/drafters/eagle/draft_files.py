"""Draft checkpoints as the public programs write them, spelt out by hand, and what they compute in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from slimtier.drafters.eagle.load import DraftFiles, read_draft

HIDDEN, WIDE, HEADS, KV_HEADS, DIM, VOCAB, TARGET_HIDDEN = 32, 40, 4, 2, 8, 48, 32
LAYERS = 8  # of the target
State = dict[str, torch.Tensor]

EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB,
    "draft_vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
}
_TOP_FIELDS = ("architectures", "draft_vocab_size", "tie_word_embeddings", "torch_dtype", "eagle_config")


def speculators(**more: Any) -> dict[str, Any]:
    """The same draft's config.json as speculators writes it; `more` goes to the top level."""
    layer = {name: value for name, value in EAGLE.items() if name not in _TOP_FIELDS}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/target"}},
        "model_type": "speculators",
        "draft_vocab_size": VOCAB,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],  # the layers before which, so the outputs of 1, 3, 4
        "transformer_layer_config": {**layer, "tie_word_embeddings": True},
    } | more


def random_state(prefix: str = "midlayer.", layers: int = 1, seed: int = 0) -> State:
    """A draft's tensors but its head, under `prefix` for the first layer."""
    draw = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw) * 0.2

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(size, generator=draw)

    state = {"fc.weight": matrix(HIDDEN, 3 * TARGET_HIDDEN), "norm.weight": norm(HIDDEN)}
    for layer in range(layers):
        width, name = (HIDDEN, f"layers.{layer}.") if layer else (2 * HIDDEN, prefix)
        state |= {
            f"{name}input_layernorm.weight": norm(HIDDEN),
            f"{name}post_attention_layernorm.weight": norm(HIDDEN),
            f"{name}self_attn.q_proj.weight": matrix(HEADS * DIM, width),
            f"{name}self_attn.k_proj.weight": matrix(KV_HEADS * DIM, width),
            f"{name}self_attn.v_proj.weight": matrix(KV_HEADS * DIM, width),
            f"{name}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * DIM),
            f"{name}mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
            f"{name}mlp.up_proj.weight": matrix(WIDE, HIDDEN),
            f"{name}mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        }
    return state | {f"{prefix}hidden_norm.weight": norm(HIDDEN)}


def random_matrix(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def full_state(prefix: str = "midlayer.") -> State:
    """With a full head of its own."""
    return random_state(prefix) | {"lm_head.weight": random_matrix(VOCAB, HIDDEN)}


def write_draft(directory: Path, config: dict[str, Any], state: State) -> Path:
    """The directory, as another program leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, directory / "model.safetensors")
    return directory


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EAGLE["rms_norm_eps"]).sqrt() * weight


def public_logits(
    state: State,
    embedding: torch.Tensor,
    tokens: torch.Tensor,
    features: torch.Tensor,
    *,
    prefix: str = "midlayer.",
    layers: int = 1,
    theta: float = 500000.0,
    **norms: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The draft's first step over a row, from the file's own tensors: what goes into the head [T, hidden] and what is
    fed back. tokens [T], features [T, 3 * target_hidden]. `norms` as config.json names them."""
    if norms.get("norm_before_fc"):
        features = rms(features, state["input_norm.weight"])
    if norms.get("fc_norm"):
        parts = features.split(TARGET_HIDDEN, dim=-1)
        features = torch.cat([rms(part, state[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], -1)
    hidden = features @ state["fc.weight"].T
    embedded = embedding[tokens]
    for layer in range(layers):
        hidden = _layer(state, f"layers.{layer}." if layer else prefix, layer, hidden, embedded, theta, norms)
    normed = rms(hidden, state["norm.weight"])
    return normed, normed if norms.get("norm_output") else hidden


def _layer(
    state: State, name: str, layer: int, hidden: torch.Tensor, embedded: torch.Tensor, theta: float, norms: Any
) -> torch.Tensor:
    if layer == 0:
        normed = rms(hidden, state[f"{name}hidden_norm.weight"])
        inputs = torch.cat([rms(embedded, state[f"{name}input_layernorm.weight"]), normed], -1)
        residual = normed if norms.get("norm_before_residual") else hidden
    else:
        inputs, residual = rms(hidden, state[f"{name}input_layernorm.weight"]), hidden
    count = len(hidden)
    angles = torch.arange(count)[:, None] * theta ** (-torch.arange(0, DIM, 2) / DIM)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def project(part: str) -> torch.Tensor:
        heads = (inputs @ state[f"{name}self_attn.{part}_proj.weight"].T).view(count, -1, DIM)
        if part == "v":
            return heads
        turned = torch.complex(heads[..., : DIM // 2], heads[..., DIM // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    queries, keys, values = project("q"), project("k"), project("v")
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / DIM**0.5
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
    hidden = residual + mixed @ state[f"{name}self_attn.o_proj.weight"].T
    normed = rms(hidden, state[f"{name}post_attention_layernorm.weight"])
    gate, up = (normed @ state[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return hidden + (F.silu(gate) * up) @ state[f"{name}mlp.down_proj.weight"].T


def causal(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention within one row that begins at position 0: for `EagleNetwork.forward`."""
    parts = (x.transpose(0, 1)[None] for x in (queries, keys, values))
    return F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def read_config(path: Path, config: dict[str, Any], state: State | None = None) -> DraftFiles:
    """The draft that is written with this config (and a full head unless `state` says otherwise), read back."""
    return read_draft(write_draft(path, config, full_state() if state is None else state), LAYERS)


def prefix(layout: str) -> str:
    """What stands before the names of the layer's tensors."""
    return "layers.0." if layout == "speculators" else "midlayer."
