"""What a decoder of the Llama family looks like, in one form whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `factor` and `original_positions` as in transformers' rope parameters;
    llama3 uses low/high_freq_factor; yarn uses beta_fast/beta_slow and attention_factor (None = 0.1 ln(factor) + 1)."""

    theta: float = 10000.0
    type: RopeType = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Grouped-query attention. `scale` multiplies q·k; `softcap` is c·tanh(s/c) on the scores;
    windows[i] is layer i's sliding window in tokens, the query's own included (0 = all)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windows: tuple[int, ...]
    qkv_bias: bool = False
    qk_norm: bool = False
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class VocabConfig:
    """The two ends of the model: embeddings (times `embedding_scale`) and head (c·tanh(z/c) if `softcap`)."""

    size: int
    tied: bool
    embedding_scale: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """A Llama-family decoder. `post_norms`: Gemma's second norm after each sublayer.
    `local_rope` (if any) is the rope of the layers that have a sliding window."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    max_positions: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    post_norms: bool
    attention: AttentionConfig
    rope: RopeConfig
    vocab: VocabConfig
    local_rope: RopeConfig | None = None
