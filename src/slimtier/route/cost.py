"""What a step on a route takes, relative to the whole target's, on this machine: measured in parts, then added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from slimtier.decode import prefill
from slimtier.models.slim import SlimTarget
from slimtier.types import Action, Route

if TYPE_CHECKING:
    from slimtier.models.base import Target
    from slimtier.route.calibration import Text
    from slimtier.route.space import Levels, Space

MOST_TOKENS = 6  # of a step: up to there a pass takes hardly longer than one of a single token
REPEATS = 7


@dataclass(frozen=True, slots=True)
class StepCost:
    """whole_s: seconds of a step of the whole target, its head and argmax included, the mean over 1 … 6 tokens.
    saved_s: what is saved where a sublayer or the head is run otherwise, "attention:skip", "mlp:q4", "head:q8" …"""

    whole_s: float
    saved_s: Mapping[str, float]

    def ratio(self, route: Route) -> float:
        """A step's time on the route ÷ the whole target's, predicted: savings of sublayers add up."""
        parts = (("attention", route.attention), ("mlp", route.mlp), ("head", (route.head,)))
        saved = sum(self.saved_s[f"{kind}:{action}"] for kind, of in parts for action in of if action != "full")
        return 1.0 - saved / self.whole_s

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """At most `limit` of the whole target's time."""

    space: Space
    cost: StepCost
    limit: float

    def met(self, levels: Levels) -> bool:
        return self.cost.ratio(self.space.route(levels)) <= self.limit


def skipped_share(route: Route) -> float:
    """The share of all sublayers that the route skips."""
    return route.sublayers.count("skip") / len(route.sublayers)


def measure_cost(
    target: Target,
    text: Text,
    actions: Sequence[Action],
    head: Action,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StepCost:
    """Time a step of the whole target, and steps in which all layers but the outer two do something else with their
    attention, or with their MLP; what that saves is shared among them."""
    layers = target.info.num_layers
    changed: list[tuple[str, Action]] = [
        (kind, action) for action in actions if action != "full" for kind in ("attention", "mlp")
    ]
    # a whole target at low precision, a baseline, has its head at q8
    heads: set[Action] = {head, "q8"} if {"q8", "q4"} & set(actions) else {head}
    changed += [("head", one) for one in sorted(heads - {"full"})]
    inner = max(1, layers - 2)
    routes = [_changed(layers, inner, kind, action) for kind, action in changed]
    whole, *others = step_seconds(target, [Route.full(layers), *routes], text, progress=progress)
    counts = [1 if kind == "head" else inner for kind, _ in changed]
    found = zip(changed, others, counts, strict=True)
    return StepCost(whole, {f"{kind}:{action}": (whole - seconds) / n for (kind, action), seconds, n in found})


def _changed(layers: int, inner: int, kind: str, action: Action) -> Route:
    begun = (layers - inner) // 2
    some: list[Action] = ["full"] * layers
    full = tuple(some)
    some[begun : begun + inner] = [action] * inner
    if kind == "head":
        return Route(full, full, action)
    return Route(tuple(some), full) if kind == "attention" else Route(full, tuple(some))


def step_seconds(
    target: Target,
    routes: Sequence[Route],
    text: Text,
    repeats: int = REPEATS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """Seconds of a step on each of the routes that ends the text, its head and argmax included: for 1 … 6 tokens the
    median of `repeats`, then the mean. The routes take turns, another one first each time."""
    bench = _Bench(target, text)
    slims = [SlimTarget(target, route) for route in routes]
    seconds: dict[tuple[int, int], list[float]] = {}
    for repeat in range(-1, repeats):  # the first one warms up
        for tokens in range(1, bench.most + 1):
            for place in range(len(slims)):
                which = (place + repeat + tokens) % len(slims)
                taken = bench.step(slims[which], tokens)
                if repeat >= 0:
                    seconds.setdefault((which, tokens), []).append(taken)
        progress(repeat + 2, repeats + 1)
    return [fmean(median(seconds[i, tokens]) for tokens in range(1, bench.most + 1)) for i in range(len(slims))]


class _Bench:
    """The target after a text but its last tokens, to which every step returns."""

    def __init__(self, target: Target, text: Text) -> None:
        ids = list(text.token_ids)
        self.most = min(MOST_TOKENS, len(ids) - 1)
        self.before = len(ids) - self.most
        self.tokens = ids[self.before :]
        self.cache = target.begin(1, len(ids), [text.inputs] if text.inputs else None)
        prefill(target, self.cache, [ids[: self.before + 1]])

    def step(self, slim: SlimTarget, count: int) -> float:
        begun = time.perf_counter()
        hidden, _ = slim.forward(self.tokens[:count], self.cache, [count])
        slim.head(hidden, "argmax")
        seconds = time.perf_counter() - begun
        self.cache.crop([self.before])
        return seconds
