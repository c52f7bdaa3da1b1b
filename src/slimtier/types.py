"""The frozen values that stages exchange: what is asked, what is drafted, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Coupling = Literal["rejection", "gumbel"]
Decider = Literal["target", "drafter"]  # who chose an output token: a recovered or bonus token is the target's
FinishReason = Literal["stop", "length", "context"]
# (token ids so far: prompt + output, logits [vocab]) -> logits [vocab]; must be a pure function of its arguments.
LogitsProcessor = Callable[[Sequence[int], "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into a token. Validated by `sampling.validate`.

    temperature 0 (or <= 1e-5) is greedy; top_k 0 and top_p 1 and min_p 0 are off; penalties as in
    transformers (repetition, no_repeat_ngram: prompt + output) and vLLM (presence, frequency: output only).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    coupling: Coupling = "rejection"
    processors: tuple[LogitsProcessor, ...] = ()


@dataclass(frozen=True, slots=True)
class StopParams:
    """When one request ends. `eos_token_ids` None = the model's own; `ignore_eos` keeps going past them."""

    max_new_tokens: int = 256
    eos_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one row. `probs` [len, vocab] is the distribution each was really drawn from;
    None means each was certain (a one-hot distribution: n-gram lookup, greedy drafting)."""

    token_ids: tuple[int, ...]
    probs: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided on one row's draft.

    token_ids: the output tokens of the round = accepted draft tokens + one recovered or bonus token (>= 1).
    accepted: how many leading tokens are the draft's own; examined: how many draft tokens were looked at.
    deciders: one per token. logprobs: per token, {token id: log probability} of the raw (unprocessed) model
    distribution, chosen token first, or () when not asked for. features: the captured states of the position before
    each token, [accepted + 1, streams · hidden], or None when not asked for.
    """

    token_ids: tuple[int, ...]
    accepted: int
    examined: int
    deciders: tuple[Decider, ...]
    logprobs: tuple[Mapping[int, float], ...] = ()
    features: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Which sublayers of a target run: attention[i] and mlp[i] for layer i; False = skipped (identity)."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]

    @classmethod
    def full(cls, num_layers: int) -> Route:
        return cls((True,) * num_layers, (True,) * num_layers)

    @classmethod
    def skipping(cls, num_layers: int, layers: Sequence[int]) -> Route:
        """The route that skips the attention and the MLP of each of `layers`."""
        kept = tuple(i not in set(layers) for i in range(num_layers))
        return cls(kept, kept)
