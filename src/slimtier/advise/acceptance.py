"""Teacher-forced acceptance: what a drafter would have proposed at every position of a text that is known.

The network is unrolled as in training (EAGLE-3's training-time test): a chain that begins at slot t reads the target's
features up to t, and then its own states, with the text's own tokens. Under greedy decoding a chain is only followed as
long as its tokens are the text's, so that is what a drafter proposes there. Plain torch, one text at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from slimtier.drafters.eagle.network import EagleNetwork


@dataclass(slots=True)
class Unrolled:
    """Attention of the chains that begin at `slots` [n], given to `EagleNetwork.forward` step by step. A query of step
    j at slot t sees the first step's keys of slots 0 … t and the keys of its own steps 1 … j."""

    slots: torch.Tensor
    _first: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by layer
    _own: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)  # by layer, then step

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        group = queries.shape[1] // keys.shape[1]
        pair = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        if layer in self._first:
            self._own.setdefault(layer, []).append(pair)
        first_keys, first_values = self._first.setdefault(layer, pair)
        own = self._own.get(layer, [])
        seen = torch.arange(len(first_keys)) <= self.slots[:, None]
        scores = torch.einsum("qhd,khd->qhk", queries, first_keys).masked_fill(~seen[:, None], -torch.inf)
        chain = [torch.einsum("qhd,qhd->qh", queries, step_keys)[..., None] for step_keys, _ in own]
        weights = (torch.cat([scores, *chain], dim=-1) * queries.shape[2] ** -0.5).softmax(-1)
        mixed = torch.einsum("qhk,khd->qhd", weights[..., : len(first_keys)], first_values)
        for index, (_, step_values) in enumerate(own):
            mixed += weights[..., len(first_keys) + index, None] * step_values
        return mixed

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these chains only (numbers among the present ones)."""
        self.slots = self.slots[rows]
        for layer, own in self._own.items():
            self._own[layer] = [(keys[rows], values[rows]) for keys, values in own]


@torch.inference_mode()
def forced_lengths(
    network: EagleNetwork, tokens: Sequence[int], features: torch.Tensor, depth: int, first: int, late: int = 0
) -> list[int]:
    """For each slot from `first` on: how many tokens of a draft of `depth` are the text's, from its beginning.

    tokens [T + 1], features [T, streams * target_hidden]; slot t holds the features of position t and token t + 1 (or
    t + 1 - `late`), and its draft begins with what should be token t + 2. Drafts end with the text.
    """
    ids, count = torch.tensor(tokens), len(features)
    attend, feature = Unrolled(torch.arange(count)), network.fuse(features)
    lengths = torch.zeros(count, dtype=torch.int64)
    for step in range(depth):
        fed = ids[attend.slots + 1 + (step or -late)]
        hidden, state = network(fed, feature, attend.slots + step, attend)
        # a chain that reaches the text's end, or is wrong, is not followed any further
        going = ((attend.slots >= first) & (attend.slots + 2 + step <= count)).nonzero()[:, 0]
        proposed = network.head.logits(hidden[going]).argmax(-1)  # type: ignore[operator]
        going = going[proposed == ids[attend.slots[going] + 2 + step]]
        attend.keep(going)
        lengths[attend.slots] += 1
        feature = state[going]
        if not len(going):
            break
    return [int(length) for length in lengths[first:]]
