"""The seam to a target model: tokens in, hidden states, logits or token ids out.

Tokens are packed [N] over the rows of a cache: `lengths[r]` consecutive tokens of `tokens` belong to row r
(0 = the row takes no part). Prefill, decoding, verification of a draft and ragged batches are the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, overload

from slimtier.types import Route

if TYPE_CHECKING:
    import torch


VocabWeight = Literal["embedding", "head"]
Reduce = Literal["logits", "argmax", "best two"]
BestTwo: TypeAlias = "tuple[list[int], torch.Tensor]"


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What the rest of slimtier may know of a target without knowing its runtime."""

    name: str  # what the user named
    runtime: Literal["native", "hf"]
    precision: str  # fp32 | bf16 | q8 | q4
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    exact: bool  # same bits for a token whatever T, batch and chunking (native on a CPU)
    weight_bytes: int  # bytes read for one decoding step (0 = unknown)
    stored: str = ""  # in what most weights are kept, so of what low-precision routes make theirs (native on a CPU)


class Cache(Protocol):
    """The state of a batch of rows: keys and values of `lengths[r]` tokens of row r."""

    @property
    def lengths(self) -> list[int]: ...

    @property
    def verified(self) -> list[int]:
        """How many tokens of each row the whole target wrote, before any that a route did."""

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget everything of row r past `lengths[r]` (which may not grow)."""

    def adopt(self, rows: Sequence[int]) -> None:
        """Let the whole target go on from what a route wrote to these rows, instead of writing it anew."""

    def keep(self, rows: Sequence[int]) -> None:
        """Make row i of the new batch what row rows[i] was; a row may be named twice (fork) or not at all (drop)."""


class Target(Protocol):
    """A model that can be decoded from. Tensors are on the target's device; token ids are Python ints."""

    info: TargetInfo

    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> Cache:
        """An empty cache for `num_rows` rows of at most `capacity` tokens. For an encoder-decoder `inputs` are the
        encoder's tokens of each row, and the encoder runs here."""

    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Append the tokens to the cache; return hidden [N, hidden] (after the final norm, what the head takes) and
        for each layer index in `capture` the residual stream after that layer, [N, hidden].

        On a route the pass may go on from what the whole target wrote; the whole target goes on from its own only, so
        what a route wrote is cropped first."""

    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["logits"] = "logits") -> torch.Tensor: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["argmax"]) -> list[int]: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["best two"]) -> BestTwo: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Reduce) -> torch.Tensor | list[int] | BestTwo: ...

    def head(self, hidden: torch.Tensor, reduce: str = "logits") -> torch.Tensor | list[int] | BestTwo:
        """logits: float32 [M, vocab]. argmax: the M token ids, logits never written; the lowest id wins a tie. best
        two: the argmax, and the values of the best two logits, float32 [2, M]; equal where two are best.
        Raises NonFiniteError when a row is not finite."""

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """The matrix of the token embeddings (before any scale) or of the head, float32 [vocab, hidden]: what a
        drafter may share."""


def reduced(logits: torch.Tensor, reduce: str) -> torch.Tensor | list[int] | BestTwo:
    """What `Target.head` returns, from logits [M, vocab] that were written."""
    if reduce == "logits":
        return logits
    ids = logits.argmax(-1).tolist()
    return (ids, logits.topk(2, sorted=True).values.T) if reduce == "best two" else ids
