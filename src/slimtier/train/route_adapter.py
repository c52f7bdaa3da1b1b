"""Low-rank adapters in training: the model on a route, over whole rows, with gradients for the adapters alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from slimtier.kernels import naive
from slimtier.models.adapters import Adapters, Pair
from slimtier.models.native_builder import matrix_actions
from slimtier.models.native_torch import Step, TorchTarget
from slimtier.models.tensors import ModelWeights
from slimtier.train.candidates import all_candidates
from slimtier.train.losses import Losses, labels_of, losses_of
from slimtier.train.shards import RowPlace, Rows
from slimtier.types import Route

Factors = Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # a [r, k] and b [n, r] by the name of their matrix


def adapted_matrices(route: Route, targets: Sequence[str]) -> list[str]:
    """The matrices of the route's sublayers that are kept whose name (`o_proj`) is among `targets`."""
    actions = matrix_actions(route)
    return [name for name, action in actions if action != "skip" and name.split(".")[-2] in targets]


def start_factors(
    weights: ModelWeights, names: Sequence[str], rank: int, seed: int, device: torch.device
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """a drawn as a linear layer's weights are, b zero (LoRA, section 4.1), so that nothing is changed at first."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name in names:
        n, k = weights.tensors[name].shape
        a = (2 * torch.rand(rank, k, generator=generator) - 1) / k**0.5
        parts = (a.to(device), torch.zeros(n, rank, device=device))
        factors[name] = (parts[0].requires_grad_(), parts[1].requires_grad_())
    return factors


def as_adapters(factors: Factors) -> Adapters:
    """What is trained, as what is written and run."""
    pairs = {name: [one.detach().cpu().numpy().copy() for one in parts] for name, parts in factors.items()}
    return Adapters.of({name: Pair(*parts) for name, parts in pairs.items()})


class AdaptedModel(TorchTarget):
    """The torch runtime's model in float32 on `route`, with `factors` beside its matrices; its own weights take no
    gradient."""

    def __init__(self, weights: ModelWeights, route: Route, factors: Factors, device: torch.device) -> None:
        super().__init__(weights, name="model", precision="fp32", device=device)
        self.route, self.factors = route, factors

    def _project(self, x: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        y = super()._project(x, layer, name)
        found = self.factors.get(f"model.layers.{layer}.{name}.weight")
        if found is None:
            return y
        a, b = found
        return y + functional.linear(functional.linear(x, a), b)

    def logits(self, token_ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """token_ids [L] of a row, read from its start -> float32 [M, vocab], what is said after each of `places`."""
        attention, length = self.config.attention, len(token_ids)
        positions = torch.arange(length, device=self.device)[None]
        shape = (1, attention.num_kv_heads, length, attention.head_dim)
        # a tensor a layer: what one layer writes must not touch what autograd keeps of another
        keys, values = (
            [torch.zeros(shape, device=self.device) for _ in range(self.config.num_layers)] for _ in range(2)
        )
        cache: Any = SimpleNamespace(keys=keys, values=values)
        step = Step(token_ids[None].to(self.device), positions, positions)
        (hidden,) = self._layers(step, cache, self.route, ())
        weight = self.weights["model.embed_tokens.weight" if self.config.vocab.tied else "lm_head.weight"]
        scores = functional.linear(hidden[0, places.to(self.device)], weight)
        return naive.softcap(scores, self.config.vocab.softcap)

    def compare(self, capture: Rows, place: RowPlace, most: int) -> Losses:
        """The route beside the target on the row's answer tokens within its first `most` tokens: KL(target ‖ route)
        over the target's kept tokens and one bucket for the rest."""
        tokens = capture.read_tokens(place)[:most]
        answer = torch.cat([torch.arange(first, stop) for first, stop in place.segments])
        seen = (answer >= 1) & (answer < len(tokens))
        top_ids, top_logprobs = (labels[seen].to(self.device) for labels in capture.read_labels(place))
        candidates = all_candidates(self.config.vocab.size, None, self.device)
        labels = labels_of(top_ids, top_logprobs, candidates)
        return losses_of(self.logits(tokens, answer[seen] - 1), labels, candidates, "kl", eta=0.0)


@dataclass(frozen=True, slots=True)
class Closeness:
    """Means over answer tokens: kl (nats), and the shares on which the most probable token is the target's (top1) and
    that speculation would accept (acceptance)."""

    tokens: int
    kl: float
    top1: float
    acceptance: float

    @classmethod
    def of(cls, parts: Sequence[Losses]) -> Closeness:
        """Of all the rows together."""
        kl, top1, acceptance = (
            torch.cat([getattr(part, name).detach().double() for part in parts])
            for name in ("loss", "top1", "acceptance")
        )
        return cls(len(kl), *(float(values.mean()) for values in (kl, top1, acceptance)))

    def __str__(self) -> str:
        return f"KL {self.kl:.4f} · top-1 {100 * self.top1:.1f} % · acceptance {100 * self.acceptance:.1f} %"


@torch.no_grad()
def measure(model: AdaptedModel, capture: Rows, places: Iterable[RowPlace], most: int) -> Closeness:
    """How close the route is to the target on these rows."""
    return Closeness.of([model.compare(capture, place, most) for place in places])
