"""The drafter in torch: for a GPU, for transformers targets, and the twin of the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.runtime import Chain, Stop, Stretch
from slimtier.errors import NonFiniteError


@dataclass(frozen=True, slots=True)
class TorchStore:
    """Keys and values of a row, [layers, capacity, kv_heads, head_dim] each; the keys are rotated."""

    keys: torch.Tensor
    values: torch.Tensor


class TorchRuntime:
    """`EagleNetwork` with a cache (satisfies `Runtime`)."""

    def __init__(self, network: EagleNetwork) -> None:
        self.network = network.eval().requires_grad_(False)
        self.max_positions = len(network.cos)

    def grow(self, store: TorchStore | None, length: int, capacity: int) -> TorchStore:
        config, like = self.network.config, self.network.fc.weight
        shape = (config.num_layers, capacity, config.num_kv_heads, config.head_dim)
        grown = TorchStore(like.new_zeros(shape), like.new_zeros(shape))
        if store is not None:
            grown.keys[:, :length] = store.keys[:, :length]
            grown.values[:, :length] = store.values[:, :length]
        return grown

    @torch.inference_mode()
    def forward(self, stretches: Sequence[Stretch], fed_back: bool) -> tuple[torch.Tensor, torch.Tensor]:
        network, like = self.network, self.network.fc.weight
        counts = [len(stretch.tokens) for stretch in stretches]
        tokens = torch.tensor([token for stretch in stretches for token in stretch.tokens], device=like.device)
        spans = [torch.arange(each.start, each.start + n) for each, n in zip(stretches, counts, strict=True)]
        inputs = torch.cat([stretch.inputs for stretch in stretches]).to(like)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            parts = (x.split_with_sizes(counts) for x in (q, k, v))
            return torch.cat([_attend(layer, *row) for row in zip(stretches, *parts, strict=True)])

        feature = inputs if fed_back else network.fuse(inputs)
        hidden, state = network(tokens, feature, torch.cat(spans).to(like.device), attend)
        lasts = torch.tensor(counts, device=like.device).cumsum(0) - 1
        return hidden[lasts], state[lasts]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network.head.logits(hidden)  # type: ignore[operator]
        return logits.float()

    def chain(self, stretches: Sequence[Stretch], steps: Sequence[int], stop: Stop) -> list[Chain]:
        chains = [Chain((), ())] * len(stretches)
        live = list(range(len(stretches)))
        hidden, state = self.forward(stretches, fed_back=False)
        while True:
            going = []
            for place, (row, token, chance) in enumerate(zip(live, *self._best(hidden), strict=True)):
                if chance >= stop.confidence:
                    had = chains[row]
                    chain = chains[row] = Chain((*had.token_ids, token), (*had.confidences, chance))
                    if len(chain.token_ids) < steps[row] and math.prod(chain.confidences) >= stop.go_on:
                        going.append(place)
            if not going:
                return chains if stop.looks else [Chain(chain.token_ids, ()) for chain in chains]
            live = [live[place] for place in going]
            fed = [
                _fed(stretches[row], chains[row], state[place, None]) for row, place in zip(live, going, strict=True)
            ]
            hidden, state = self.forward(fed, fed_back=True)

    def _best(self, hidden: torch.Tensor) -> tuple[list[int], list[float]]:
        """The argmax of each row, and its probability."""
        logits = self.logits(hidden)
        if not bool(logits.amax(-1).isfinite().all()):
            raise NonFiniteError("the drafter's scores are not finite; check its weights and the features")
        best = logits.argmax(-1)
        chances = (logits.gather(1, best[:, None])[:, 0] - logits.logsumexp(-1)).exp()
        return best.tolist(), chances.tolist()


def _fed(stretch: Stretch, chain: Chain, state: torch.Tensor) -> Stretch:
    """The slot of a chain's last token, with the state [1, hidden] of the slot before."""
    start = stretch.start + len(stretch.tokens) + len(chain.token_ids) - 1
    return Stretch(stretch.store, start, chain.token_ids[-1:], state)


def _attend(layer: int, stretch: Stretch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of a stretch's queries [n, heads, dim] over all slots up to their own, after the stretch's keys
    and values [n, kv_heads, dim] are stored."""
    end = stretch.start + len(q)
    keys, values = stretch.store.keys[layer, :end], stretch.store.values[layer, :end]
    keys[stretch.start :], values[stretch.start :] = k, v
    seen = torch.ones(len(q), end, dtype=torch.bool, device=q.device).tril(stretch.start)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, keys, values))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)
