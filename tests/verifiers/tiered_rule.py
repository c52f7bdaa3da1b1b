"""VIA-SD's rule written down once more, and what drafts so that all of it happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slimtier.drafters.base import DraftContext
from slimtier.models.slim import SlimTarget
from slimtier.noise import Noise
from slimtier.sampling import process
from slimtier.types import Decider, Draft, Route, SamplingParams
from slimtier.verifiers.gate import Gate
from slimtier.verifiers.tiered import TieredVerifier
from tests.stubs import ScriptedDrafter, StubTarget, seeded_normal
from tests.tiering import DEEP as ROUTE
from tests.tiering import Quick, small

__all__ = ["ROUTE", "Naive", "by_the_rule", "guesses", "noisy", "tiered"]


def noisy(**options: Any) -> Quick:
    """Logits so close that a slim verifier finds tokens of every ratio."""
    return small(**{"scale": 1.0, "route_noise": 0.7, **options})


def tiered(target: StubTarget, gate: Gate | None = None, route: Route = ROUTE) -> TieredVerifier:
    return TieredVerifier(target, SlimTarget(target, route), gate or Gate())


def guesses(target: StubTarget) -> ScriptedDrafter:
    """One of the slim verifier's best three tokens after each history, or the target's own: all regions are met."""

    def script(context: DraftContext, limit: int) -> Draft:
        tokens = list(context.token_ids)
        for _ in range(limit):
            pick = int(seeded_normal(1, "pick", *tokens[-4:]).abs() * 1000) % 4
            best = target.logits_of(tokens, ROUTE).topk(3).indices
            tokens.append(int(best[pick] if pick < 3 else target.logits_of(tokens).argmax()))
        return Draft(tuple(tokens[len(context.token_ids) :]))

    return ScriptedDrafter(script, "guesses")


@dataclass
class Naive:
    """VIA-SD at temperature 0 with the gate's two thresholds (and margin), a row on its own, everything worked out
    from the history. `fed`: how many tokens the target reads each time it is asked."""

    target: StubTarget
    gate: Gate
    params: SamplingParams
    num_prompt: int
    tokens: list[int]
    route: Route = ROUTE
    deciders: list[Decider] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.read = len(self.tokens) - 1  # by the target

    def logits(self, route: Route | None) -> torch.Tensor:
        return process(self.target.logits_of(self.tokens, route), self.tokens, self.num_prompt, self.params)

    def wants_the_target(self, slim: torch.Tensor, drafted: int | None) -> bool:
        best, second = slim.sort(descending=True).values[:2].tolist()
        ratio = 1.0 if drafted is None else math.exp(float(slim[drafted]) - best)
        return best - second < self.gate.margin or ratio < self.gate.escalate

    def one_round(self, draft: Sequence[int]) -> None:
        self.rounds += 1
        start, asked = len(self.tokens), False
        for drafted in (*draft, None):
            slim = self.logits(self.route)
            asked = asked or self.wants_the_target(slim, drafted)
            keep = drafted is not None and math.exp(float(slim[drafted] - slim.max())) >= self.gate.accept
            if asked:
                token, decider = int(self.logits(None).argmax()), "target"
            else:
                token, decider = (drafted, "drafter") if keep else (int(slim.argmax()), "slim")
            self.tokens.append(token)  # type: ignore[arg-type]
            self.deciders.append(decider)  # type: ignore[arg-type]
            if token != drafted:
                break
        if asked:
            few = self.gate.reread
            resume = self.read if few is None else max(self.read, start - 1 - few)
            self.fed.append(start - resume + len(draft))
            if resume == self.read:  # nothing is left that a slim verifier wrote
                self.read = len(self.tokens) - 1


def by_the_rule(
    target: StubTarget, gate: Gate, prompt: list[int], count: int, drafter: ScriptedDrafter, k: int, **options: Any
) -> Naive:
    """`count` tokens after the prompt, drafted as the loop drafts for row `key`."""
    key, params = options.pop("key", 0), options.pop("params", SamplingParams())
    naive = Naive(target, gate, params, len(prompt), list(prompt), **options)
    noise = Noise.of(params.seed, stream="verifier").fork("drafter")
    while len(naive.tokens) < len(prompt) + count:
        limit = min(k, len(prompt) + count - len(naive.tokens) - 1)
        naive.one_round(drafter.script(DraftContext(key, naive.tokens, len(prompt), params, noise), limit).token_ids)
    return naive
