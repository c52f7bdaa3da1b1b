"""The frozen values that stages exchange: what is asked, what is drafted, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from slimtier.noise import Noise

Coupling = Literal["rejection", "gumbel"]
# who chose an output token: a recovered or bonus token is the target's; `slim` is a slim verifier between the two
Decider = Literal["target", "slim", "drafter"]
Action = Literal["full", "q8", "q4", "skip"]  # what a route does with a sublayer
ACTIONS: tuple[Action, ...] = ("full", "q8", "q4", "skip")
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
    None means each was certain (a one-hot distribution: n-gram lookup, greedy drafting). `deciders`: who chose each
    token, () = the drafter; `slim_calls`: forwards of a slim verifier that it took."""

    token_ids: tuple[int, ...]
    probs: torch.Tensor | None = None
    deciders: tuple[Decider, ...] = ()
    slim_calls: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided on one row's draft.

    token_ids: the output tokens of the round = accepted draft tokens + one recovered or bonus token (>= 1).
    accepted: how many leading tokens are the draft's own; examined: how many draft tokens were looked at.
    deciders: one per token. logprobs: per token, {token id: log probability} of the raw (unprocessed) model
    distribution, chosen token first, or () when not asked for. features: the captured states of the position before
    each token, [len(token_ids), streams · hidden], or None when not asked for. target_calls, slim_calls: forwards of
    the target and of a slim verifier that it took. probs: the distribution of the verifier's model that each token
    follows, processed, [len(token_ids), vocab], when asked for. lagged: the row's last tokens whose features a slim
    verifier had given and the target now gave anew; `features` then begins with the states before each of them.
    gated: for each draft token examined, who would have decided it in lossy tiers, where that was observed.
    """

    token_ids: tuple[int, ...]
    accepted: int
    examined: int
    deciders: tuple[Decider, ...]
    logprobs: tuple[Mapping[int, float], ...] = ()
    features: torch.Tensor | None = None
    target_calls: int = 1
    slim_calls: int = 0
    probs: torch.Tensor | None = None
    lagged: tuple[int, ...] = ()
    gated: tuple[Decider, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One row as a verifier sees it. `token_ids` is prompt + output so far; `logprobs`: report the top n (None: no);
    `probs`: report the distribution [vocab] that each token follows; `key` names the sequence over its life."""

    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    noise: Noise
    logprobs: int | None = None
    probs: bool = False
    key: int = -1


@dataclass(frozen=True, slots=True)
class Route:
    """What a pass of the target does with each sublayer: attention[i] and mlp[i] of layer i, and the head. `skip`
    leaves the residual stream as it is (VIA-SD's layer mask), `q8` and `q4` use a low-precision copy of the weights.
    The head cannot be skipped. Embeddings and norms are always the target's own. `adapter`: the digest of the low-rank
    adapters that the target adds on this route ("": none); what they change is a copy, of 8 bits where it says full."""

    attention: tuple[Action, ...]
    mlp: tuple[Action, ...]
    head: Action = "full"
    adapter: str = ""

    @classmethod
    def full(cls, num_layers: int) -> Route:
        return cls.skipping(num_layers, ())

    @classmethod
    def at(cls, num_layers: int, precision: Action) -> Route:
        """Every layer at one precision; a head of 8 bits beside layers of 8 or 4, as in a q4 model."""
        return cls((precision,) * num_layers, (precision,) * num_layers, "full" if precision == "full" else "q8")

    @classmethod
    def skipping(cls, num_layers: int, layers: Sequence[int]) -> Route:
        """The route that skips the attention and the MLP of each of `layers`."""
        kept: list[Action] = ["skip" if i in set(layers) else "full" for i in range(num_layers)]
        return cls(tuple(kept), tuple(kept))

    @property
    def sublayers(self) -> tuple[Action, ...]:
        """Attention and MLP of each layer in turn."""
        return tuple(action for pair in zip(self.attention, self.mlp, strict=True) for action in pair)

    @property
    def runs_attention(self) -> tuple[bool, ...]:
        return tuple(action != "skip" for action in self.attention)

    @property
    def fills_caches(self) -> bool:
        """Whether it writes keys and values in every layer, so that the whole target can go on from them."""
        return all(self.runs_attention)

    @property
    def runs_mlp(self) -> tuple[bool, ...]:
        return tuple(action != "skip" for action in self.mlp)

    @property
    def precisions(self) -> frozenset[Action]:
        """The low precisions that it uses."""
        copies: tuple[Action, ...] = ("q8",) if self.adapter else ()
        return frozenset((*self.sublayers, self.head, *copies)) - {"full", "skip"}

    def thins(self, other: Route) -> bool:
        """Whether it keeps no more of any sublayer than `other` does (full before q8 before q4 before skip)."""
        pairs = zip((*self.sublayers, self.head), (*other.sublayers, other.head), strict=True)
        return all(ACTIONS.index(mine) >= ACTIONS.index(theirs) for mine, theirs in pairs)
