"""A stub model whose route is a little off, and calibrations of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from slimtier.calibrate.plan import Plan
from slimtier.calibrate.run import calibrate
from slimtier.calibrate.trial import Drafting
from slimtier.loading import Loaded
from slimtier.models.route_file import RouteFile
from tests.stubs import ScriptedDrafter, StubTarget, mixed

ROUTE = "skip:0.5"  # of 4 layers: 1 and 2
PLAN: dict[str, Any] = {"epsilon": 0.25, "prompts": 16, "max_new_tokens": 9, "timed": 2}
GRID: dict[str, Any] = {"margins": (2.0, 1.0, 0.0), "accepts": (0.2,)}


class Fixed:
    """Its drafts depend on the tokens alone: right, then wrong after as many as the last token's remainder by 3."""

    def __init__(self, target: StubTarget) -> None:
        self.target = target
        self.built: list[ScriptedDrafter] = []

    def build(self) -> ScriptedDrafter:
        self.built.append(mixed(self.target, lambda context, limit: context.token_ids[-1] % 3, "fixed"))
        return self.built[-1]


def prompts(count: int = 16) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(24) for _ in range(rng.randrange(2, 5))] for _ in range(count)]


def run(out: Path, noise: float = 1.0, asked: Any = None, route: str = ROUTE, progress: Any = None, **plan: Any) -> Any:
    """The route file, and the target that was decoded from."""
    target = StubTarget(24, route_noise=noise)
    fixed = Drafting("fixed", Fixed(target).build, 3, {"size": 1})
    given = Plan(**{**PLAN, **GRID, **plan})
    more = {} if progress is None else {"progress": progress}
    file = calibrate(Loaded(target, None), fixed, route, asked or prompts(), given, out, **more)
    assert isinstance(file, RouteFile)
    return file, target
