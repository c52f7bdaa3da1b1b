"""A tiny target and a drafter that was taught its answers by heart, so that any change in how it is read shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.save import save_draft
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.engine import Engine
from slimtier.models.native import NativeTarget
from slimtier.models.resolve import ModelFiles
from tests.drafters.eagle.drafts import make_network
from tests.models.native_models import save

DEPTH, TOKENS = 3, 16
PROMPTS = [[number, 95 - number, 7 * number % 96] for number in range(3, 15)]


@dataclass(frozen=True)
class Taught:
    target: Any
    network: EagleNetwork
    path: Path  # of the draft


def taught(directory: Path, steps: int = 60, **options: Any) -> Taught:
    """A target of random weights and a draft trained on its greedy answers to PROMPTS. `options`: `make_network`'s."""
    save("llama", directory / "target")
    files = ModelFiles("tiny", "safetensors", directory / "target")
    target = NativeTarget.from_pretrained(files, precision="fp32", threads=1)
    network = make_network(target, **options)
    answers = Engine(target).generate(PROMPTS, max_new_tokens=TOKENS, ignore_eos=True)
    texts = [[*prompt, *one.token_ids] for prompt, one in zip(PROMPTS, answers, strict=True)]  # type: ignore[arg-type]
    teach(network, target, texts, steps)
    path = directory / "draft"
    save_draft(network.state_dict(), network.config, path, {}, target=TargetRecord.of(target.info), dtype="fp32")
    return Taught(target, network.eval(), path)


def features_of(target: Any, network: EagleNetwork, tokens: Sequence[int]) -> torch.Tensor:
    cache = target.begin(1, len(tokens))
    _, streams = target.forward(tokens[:-1], cache, [len(tokens) - 1], capture=network.config.capture)
    return torch.cat(streams, -1)


def teach(network: EagleNetwork, target: Any, texts: Sequence[Sequence[int]], steps: int) -> None:
    """Cross-entropy on every draft position of all texts at once, their slots side by side."""
    features = torch.cat([features_of(target, network, text) for text in texts])
    owner = torch.cat([torch.full((len(text) - 1,), index) for index, text in enumerate(texts)])
    place = torch.cat([torch.arange(len(text) - 1) for text in texts])
    left = torch.cat([torch.arange(len(text) - 1).flip(0) for text in texts])  # slots of the text that come after
    after = torch.cat([torch.tensor(text[1:]) for text in texts])  # a slot's token
    seen = (owner[:, None] == owner) & (place[:, None] >= place)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        loss, attend, state = torch.zeros(()), SideBySide(seen), network.fuse(features)
        for step in range(DEPTH):
            hidden, state = network(after.roll(-step), state, place + step, attend)
            learnt = left > step
            logits = network.head.logits(hidden[learnt])  # type: ignore[operator]
            loss = loss + F.cross_entropy(logits, after.roll(-1 - step)[learnt])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


class SideBySide:
    """Attention of unrolled steps: the first step's keys where `seen` [slots, slots], and the slot's own later ones."""

    def __init__(self, seen: torch.Tensor) -> None:
        self.seen = seen
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        self.kept.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        (keys, values), own = self.kept[0], self.kept[1:]
        scores = [torch.einsum("qhd,khd->qhk", q, keys).masked_fill(~self.seen[:, None], -torch.inf)]
        scores += [(q * step_keys).sum(-1, keepdim=True) for step_keys, _ in own]
        weights = (torch.cat(scores, -1) * q.shape[-1] ** -0.5).softmax(-1)
        mixed = torch.einsum("qhk,khd->qhd", weights[..., : len(keys)], values)
        for index, (_, step_values) in enumerate(own):
            mixed = mixed + weights[..., len(keys) + index, None] * step_values
        return mixed
