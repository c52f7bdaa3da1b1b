"""Tiny drafters of random weights, and what they draft, worked out without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from slimtier.drafters.base import DraftContext
from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.drafter import Drafted, EagleDrafter
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.runtime import Stop
from slimtier.drafters.eagle.runtime_torch import TorchRuntime
from slimtier.drafters.eagle.save import save_draft
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.models.base import Target
from slimtier.models.config import RopeConfig
from slimtier.sampling import needs_logits
from tests.stubs import StubTarget

CAPTURE = (0, 1, 3)


def make_network(
    target: Target,
    *,
    head: HeadConfig | None = None,
    norms: NormConfig | None = None,
    num_layers: int = 1,
    max_positions: int = 256,
    seed: int = 0,
    capture: tuple[int, ...] = CAPTURE,
) -> EagleNetwork:
    """Wide random weights, so that drafts depend clearly on every input."""
    info = target.info
    config = EagleConfig(
        hidden_size=info.hidden_size,
        intermediate_size=48,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        target_hidden_size=info.hidden_size,
        capture=capture,
        norm_eps=1e-5,
        rope=RopeConfig(),
        head=head or HeadConfig("slim", info.vocab_size, rank=6),
        norms=norms or NormConfig(),
    )
    network = EagleNetwork(config, target.weight("embedding"), max_positions)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            spread = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(spread * parameter.shape[1] ** -0.5 * 2 if parameter.dim() == 2 else 1 + 0.1 * spread)
    return network


def make_drafter(target: Target, confidence: float = 0.0, **options: object) -> EagleDrafter:
    return EagleDrafter(TorchRuntime(make_network(target, **options)), CAPTURE, confidence)  # type: ignore[arg-type]


def save_random(target: Target, path: Path, tokenizer: Any = None, **options: Any) -> Path:
    """A draft's directory for the target."""
    network = make_network(target, **options)
    record = TargetRecord.of(target.info, tokenizer)
    save_draft(network.state_dict(), network.config, path, {}, target=record, dtype="fp32")
    return path


def features_of(target: StubTarget, tokens: Sequence[int]) -> torch.Tensor:
    """The captured streams of a stub side by side, [len(tokens), streams · hidden]."""
    states = torch.stack([target.logits_of(tokens[: end + 1]) for end in range(len(tokens))])
    return torch.cat([states + layer for layer in CAPTURE], -1)


def naive_logits(
    network: EagleNetwork, tokens: Sequence[int], features: torch.Tensor, drafted: Sequence[int]
) -> torch.Tensor:
    """The head's logits [vocab] after tokens [n] and `drafted`: slot t holds token t + 1 and the features of position
    t; later slots hold the drafted tokens and the state of the slot before. Everything is run again for each."""
    slot_tokens = list(tokens[1:])
    inputs = network.fuse(features)
    while True:
        count = len(slot_tokens)
        seen = torch.ones(count, count, dtype=torch.bool).tril()

        def attend(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor = seen
        ) -> torch.Tensor:
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
            return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)

        hidden, state = network(torch.tensor(slot_tokens), inputs, torch.arange(count), attend)
        place = count - (len(tokens) - 1)
        if place == len(drafted):
            return network.head.logits(hidden[-1:])[0]  # type: ignore[operator,no-any-return]
        slot_tokens.append(drafted[place])
        inputs = torch.cat([inputs, state[-1:]])


@torch.no_grad()
def naive_chain(network: EagleNetwork, target: StubTarget, tokens: Sequence[int], steps: int) -> list[int]:
    features, drafted = features_of(target, tokens[:-1]), []
    for _ in range(steps):
        drafted.append(int(naive_logits(network, tokens, features, drafted).argmax()))
    return drafted


class Checked(EagleDrafter):
    """An EAGLE drafter on a stub target whose every greedy draft must be the one worked out without a cache.
    `empty` counts rows that got none although some was asked for."""

    def __init__(self, target: StubTarget, confidence: float = 0.0, **options: Any) -> None:
        self.network = make_network(target, **options)
        super().__init__(TorchRuntime(self.network), CAPTURE, confidence)
        self.target = target
        self.checked = self.empty = 0

    def draft(self, contexts: Sequence[DraftContext], limits: Sequence[int], stops: Sequence[Stop]) -> list[Drafted]:
        found = super().draft(contexts, limits, stops)
        for context, limit, stop, one in zip(contexts, limits, stops, found, strict=True):
            drafted = one.draft.token_ids
            if limit and not drafted:
                self.empty += 1
            elif limit and not needs_logits(context.sampling):
                want = naive_chain(self.network, self.target, context.token_ids, len(drafted))
                assert list(drafted) == want
                assert stop.looks or len(want) == limit
                self.checked += 1
        return found
