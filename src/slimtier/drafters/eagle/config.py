"""What an EAGLE-3 drafter looks like, in one form whatever layout it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slimtier.models.config import RopeConfig

HeadKind = Literal["full", "slim", "trimmed", "routed"]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The drafter's head. full: [vocab, hidden]; slim: `rank`, over the full vocabulary; trimmed: `size` rows of the
    vocabulary; routed: a slim router of `rank` picks `size` rows, which get exact logits. Unused numbers are 0."""

    kind: HeadKind
    vocab_size: int  # the target's
    rank: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class NormConfig:
    """Where EAGLE-3 checkpoints differ. before_residual: the residual is the normed feature; before_fc: one norm over
    the captured streams together; fc: one norm for each of them; output: the normed output is fed back."""

    before_residual: bool = False
    before_fc: bool = False
    fc: bool = False
    output: bool = False


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """One drafter. `capture`: the target's layers whose *outputs* it reads (0 = the first layer's output);
    layers past the first are plain decoder layers on its residual stream."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_hidden_size: int
    capture: tuple[int, ...]
    norm_eps: float
    rope: RopeConfig
    head: HeadConfig
    norms: NormConfig = NormConfig()


def default_capture(num_layers: int) -> tuple[int, int, int]:
    """The layers EAGLE-3 captures: the outputs of 1, L/2 - 1 and L - 4 (vLLM's 2, L/2, L - 3 name the same states by
    the layer that reads them)."""
    return 1, num_layers // 2 - 1, num_layers - 4
