"""What is usually wrong when a draft is accepted less than it should be, each thing tried on the network itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.models.rope import rope_tables

SURE = 1e-3  # the chance that a difference of this size is luck


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to read a draft. `late`: the token beside the features of position t is t + 1 - late; `shift`: the
    features at t are those of position t - shift. `name` says what is read, in a sentence's words."""

    name: str
    config: EagleConfig
    late: int = 0
    shift: int = 0

    def features(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """[T, streams * hidden] of a text's captured states."""
        side_by_side = torch.cat([streams[layer] for layer in self.config.capture], dim=-1)
        if not self.shift:
            return side_by_side
        return torch.cat([side_by_side[: self.shift], side_by_side[: -self.shift]])

    def network(self, network: EagleNetwork) -> EagleNetwork:
        """The network as this variant reads it; the weights are shared."""
        if self.config == network.config:
            return network
        tensors = [*network.parameters(), *network.buffers()]
        changed = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
        changed.config = self.config
        for layer in changed.layers:
            layer.config = self.config  # type: ignore[assignment]
        if self.config.rope != network.config.rope:
            changed.cos, changed.sin = rope_tables(self.config.rope, self.config.head_dim, len(network.cos))
        return changed


def variants(config: EagleConfig, num_layers: int, target_theta: float | None) -> list[Variant]:
    """What may be wrong with a draft of `config` or with how it is run. `target_theta`: of the target's rope."""
    norms, found = config.norms, []
    for step in (-1, 1):
        layers = tuple(layer + step for layer in config.capture)
        if min(layers) >= 0 and max(layers) < num_layers:
            found.append(Variant(f"the outputs of layers {list(layers)}", replace(config, capture=layers)))
    for field, flipped in (
        ("before_residual", replace(norms, before_residual=not norms.before_residual)),
        ("output", replace(norms, output=not norms.output)),
    ):
        value = str(getattr(flipped, field)).lower()
        name = f"norm_{field} = {value}"
        found.append(Variant(name, replace(config, norms=flipped)))
    if target_theta is not None and target_theta != config.rope.theta:
        rope = replace(config.rope, theta=target_theta)
        found.append(Variant(f"rope_theta = {target_theta:g}, the target's", replace(config, rope=rope)))
    found.append(Variant("the token of the features' own position, not the one after it", config, late=1))
    found.append(Variant("the features of one position before", config, shift=1))
    return found


def chance(gains: int, losses: int) -> float:
    """How likely a fair coin is at least as far from the middle (the sign test, two-sided)."""
    count, most = gains + losses, max(gains, losses)
    tail = sum(math.comb(count, many) for many in range(most, count + 1))
    return min(1.0, 2 * tail / (1 << count))
