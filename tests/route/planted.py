"""A target some of whose sublayers do nothing: skipping those changes no logit, skipping any other one does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from slimtier.route.calibration import Text
from slimtier.route.judge import Judge
from slimtier.types import Route
from tests.stubs import StubTarget, plain_tokens, seeded_normal

VOCAB = 24


class PlantedTarget(StubTarget):
    """Skipping sublayer s (numbered as in `Route.sublayers`) adds weight[s] · noise of s and the history to the logits;
    weight 0 is planted for `redundant` ones, the others have from 0.5 to 1.5. Low precision adds a hundredth."""

    def __init__(self, redundant: Sequence[int] = (), num_layers: int = 8, seed: int = 0) -> None:
        super().__init__(VOCAB, seed=seed, num_layers=num_layers, order=2)
        self.redundant = frozenset(redundant)
        self.noise = functools.cache(lambda seen, sublayer: seeded_normal(VOCAB, "noise", seed, seen, sublayer))
        self.plain = functools.cache(lambda seen: 2.0 * seeded_normal(VOCAB, seed, seen))
        self.weights = [
            0.0 if sublayer in self.redundant else 1.0 + 0.5 * float(seeded_normal(1, seed, sublayer).clamp(-1, 1))
            for sublayer in range(2 * num_layers)
        ]

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        seen = tuple(history)[-2:]
        logits = self.plain(seen).clone()
        for sublayer, action in enumerate(route.sublayers if route is not None else ()):
            if action != "full" and self.weights[sublayer]:
                share = 1.0 if action == "skip" else 0.01
                logits += share * self.weights[sublayer] * self.noise(seen, sublayer)
        return logits

    def head(self, hidden: torch.Tensor, reduce: str = "logits", *, route: Route | None = None) -> Any:
        """Low precision of the head moves nothing here."""
        return super().head(hidden, reduce)


def texts_of(target: StubTarget, count: int = 3, length: int = 5) -> list[Text]:
    """Prompts of various lengths, answered by the target; the whole answer is the stretch."""
    texts = []
    for number in range(count):
        prompt = [(7 * number + place) % target.info.vocab_size for place in range(2 + number)]
        answer = plain_tokens(target, prompt, length)
        texts.append(Text((*prompt, *answer), len(prompt), len(prompt) + length))
    return texts


def judge_of(target: StubTarget, count: int = 3, length: int = 5) -> Judge:
    return Judge(target, texts_of(target, count, length))  # type: ignore[arg-type]
