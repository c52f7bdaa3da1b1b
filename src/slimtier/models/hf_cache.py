"""The keys and values of a batch of rows for transformers models, held so that any of them can be rewound."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from slimtier.errors import UnsupportedError
from slimtier.models.rows import Rows


class RowLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of one row: keys and values [1, heads, length, head_dim] of every token, never only a window's.

    A sliding-window model masks the tokens outside its window by itself, so keeping them all costs memory but lets
    `rewind` bring back any earlier state. `length` counts the tokens of a layer whose attention is skipped too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.length += key_states.shape[-2]
        return super().update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self) -> int:
        return self.length

    def rewind(self, length: int) -> None:
        self.keys = _first(self.keys, length)
        self.values = _first(self.values, length)
        self.length = length


def _first(states: torch.Tensor | None, length: int) -> torch.Tensor | None:
    """The first `length` tokens of keys or values [1, heads, T, head_dim]; nothing is held yet in None and in []."""
    return states[..., :length, :] if states is not None and states.numel() else states


@dataclass(frozen=True, slots=True)
class Row:
    """One row's transformers cache, and for an encoder-decoder the encoder's output [1, input tokens, hidden]."""

    state: DynamicCache | EncoderDecoderCache
    encoded: torch.Tensor | None

    @property
    def layers(self) -> list[RowLayer]:
        own = self.state.self_attention_cache if isinstance(self.state, EncoderDecoderCache) else self.state
        return cast("list[RowLayer]", own.layers)

    def settle(self, length: int) -> None:
        """Make every layer count `length` tokens: rewinds those with more, and tells skipped layers of new ones."""
        for layer in self.layers:
            layer.rewind(length)

    def fork(self) -> Row:
        return Row(copy.deepcopy(self.state), self.encoded)


def new_row(num_layers: int, encoded: torch.Tensor | None = None) -> Row:
    """An empty row; with `encoded` (the encoder's output) a row of an encoder-decoder."""
    own = DynamicCache()
    own.layers = [RowLayer() for _ in range(num_layers)]
    return Row(own if encoded is None else EncoderDecoderCache(own, DynamicCache()), encoded)


class HfCache(Rows):
    """The rows of a batch, one transformers cache each (satisfies `Cache`)."""

    def __init__(self, rows: Sequence[Row], capacity: int) -> None:
        super().__init__(len(rows))
        self.rows = list(rows)
        self.capacity = capacity

    @torch.inference_mode()
    def _rewind(self, lengths: Sequence[int]) -> None:
        for row, length in zip(self.rows, lengths, strict=True):
            row.settle(length)

    @torch.inference_mode()
    def _take(self, rows: Sequence[int]) -> None:
        taken: set[int] = set()
        kept = []
        for row in rows:
            kept.append(self.rows[row].fork() if row in taken else self.rows[row])
            taken.add(row)
        self.rows = kept


def cache_argument(model: Any, decoder: Any) -> str:
    """The name under which `decoder` takes its cache. Raises UnsupportedError when its state cannot be rewound."""
    family = getattr(model.config, "model_type", type(model).__name__)
    mend = "choose a model that keeps keys and values of every token"
    names = [n for n in ("cache", "past_key_values") if n in inspect.signature(decoder.forward).parameters]
    if getattr(model, "_is_stateful", False) or not names:
        raise UnsupportedError(f"{family} keeps a recurrent state that cannot be rewound after a rejection; {mend}")
    kinds = {type(layer) for layer in DynamicCache(config=decoder.config).layers}
    for kind in kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
        raise UnsupportedError(f"{family} needs a cache of {kind.__name__}, which cannot be rewound; {mend}")
    return names[0]
