"""AdamW or Muon over a draft's weights, the rate's schedule, and the running mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from slimtier.train.autocast import multiplies_bfloat16
from slimtier.train.config import OptimisationPart

_BETAS = (0.9, 0.95)
_BY_TOKEN = ("head.weight", ".up")
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024


def rate(step: int, steps: int, config: OptimisationPart) -> float:
    """The share of the peak rate at `step` (from 0): a linear warm-up, then a cosine down to `final_lr`."""
    warmup = math.ceil(config.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * done))


def make_optimisers(network: nn.Module, config: OptimisationPart, bf16: bool = True) -> list[torch.optim.Optimizer]:
    """Each group has its peak rate as "peak_lr". Under muon AdamW keeps what has a row for each token, and all that is
    no matrix. `bf16`: Muon's iterations, where the device is fast at it."""
    trained = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
    muon = [w for name, w in trained if config.optimiser == "muon" and w.dim() == 2 and not name.endswith(_BY_TOKEN)]
    taken = {id(weight) for weight in muon}
    others = [weight for _, weight in trained if id(weight) not in taken]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=config.lr, betas=_BETAS, weight_decay=config.weight_decay, fused=True)
    ]
    if muon:
        made.append(Muon(muon, config.muon_lr, config.weight_decay, bf16=bf16))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return made


def set_rate(optimisers: Iterable[torch.optim.Optimizer], share: float) -> None:
    """Set every group's rate to a share of its peak."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak_lr"] * share


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are orthogonalised (Jordan et al. 2024). torch.optim.Muon iterates in bfloat16, which a
    CPU without bfloat16 units does many times slower; this one takes float32 there, and without `bf16`."""

    def __init__(
        self,
        weights: list[nn.Parameter],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        bf16: bool = True,
    ) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._bf16 = bf16

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalised(weight.grad.lerp(momentum, group["momentum"]), self._bf16)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)


def orthogonalised(matrix: torch.Tensor, bf16: bool = True, steps: int = 5) -> torch.Tensor:
    """[n, m] -> about U Vᵀ of its singular value decomposition, by Newton-Schulz iterations."""
    a, b, c = _NEWTON_SCHULZ
    x: torch.Tensor = matrix.bfloat16() if bf16 and multiplies_bfloat16(matrix.device) else matrix
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if tall else x
    return x.to(matrix.dtype)


class RunningMean:
    """The exponential moving average of a network's weights."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: weight.detach().clone() for name, weight in network.named_parameters()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Move towards the network's weights after `step` steps; the first steps, far from the mean, fade sooner."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, weight in network.named_parameters():
            self.weights[name].lerp_(weight, 1 - decay)

    @torch.no_grad()
    def swap(self, network: nn.Module) -> None:
        """Exchange with the network's weights; a second time takes it back."""
        for name, weight in network.named_parameters():
            kept = weight.clone()
            weight.copy_(self.weights[name])
            self.weights[name].copy_(kept)
