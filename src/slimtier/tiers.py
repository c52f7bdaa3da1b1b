"""Tiers by name: a drafter and a verifier joined with a slim verifier between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from slimtier.config import read_dataclass, refuse_unknown
from slimtier.errors import ConfigError
from slimtier.models.route_file import RouteFile, check_route, default_route, find_route

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.models.base import Target, TargetInfo
    from slimtier.types import Route
    from slimtier.verifiers.base import Verifier
    from slimtier.verifiers.gate import Gate

Tiers = Literal["exact", "paper", "calibrated", "observe"]
TIERS: tuple[str, ...] = get_args(Tiers)
FLUSH = 11  # tokens of the slim verifier, or a few more, that the target looks at together
DECIDING = ("gate", "accept", "escalate", "margin")  # who decides; the gate's other settings: what comes of it
SETTINGS = {
    "exact": ("flush",),
    "paper": (*DECIDING, "literal", "reread"),
    "calibrated": (),
    "observe": DECIDING,
}
TIER_SETTINGS = tuple(dict.fromkeys(name for names in SETTINGS.values() for name in names))
LOSSY = ("paper", "calibrated")


@dataclass(frozen=True, slots=True)
class Joined:
    """What decodes: the outer drafter and verifier, and how far the drafter drafts at most."""

    drafter: Drafter
    verifier: Verifier
    num_speculative_tokens: int


def check_tiers(tiers: str | None, route: Any, settings: Mapping[str, Any], verifier: str) -> None:
    """ConfigError, before anything is loaded, for tiers, a route or settings that cannot be."""
    if tiers is None:
        if route is not None:
            raise ConfigError(f"route {route} is used by no tiers: add --tiers {', '.join(TIERS)}, or leave it out")
        return
    refuse_unknown([tiers], TIERS, "tiers")
    if verifier != "lossless":
        raise ConfigError(f"tiers {tiers} bring a verifier of their own: leave --verifier {verifier} out")
    for name in settings:
        if name not in SETTINGS[tiers]:
            owners = [f"--tiers {one}" for one in TIERS if name in SETTINGS[one]]
            raise ConfigError(f"setting {name!r} is not used by tiers {tiers}: choose {' or '.join(owners)}")
    routes = check_routes(route)
    _refuse_several(tiers, routes)
    if tiers == "calibrated" and (not routes or routes[0] in ("none", "q4", "q8") or routes[0].startswith("skip:")):
        raise ConfigError("tiers calibrated need a route file with its evidence: make one with `slimtier calibrate`")
    if tiers == "exact":
        _flushes(settings.get("flush", FLUSH), max(1, len(routes)))
    else:
        read_gate(settings)


def join(
    target: Target,
    drafter: Drafter,
    num_speculative_tokens: int,
    tiers: str,
    route: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> Joined:
    """`drafter` and `target` with a slim verifier on the route between them. Raises ConfigError where the route does
    not fit the model, or is not calibrated and must be."""
    from slimtier.models.slim import SlimTarget

    settings = settings or {}
    names = routes_for(target.info, route)
    _refuse_several(tiers, names)
    found = [find_route(name, target) for name in names]
    if tiers != "observe":
        verify_on(drafter, found[-1][0], target)
    if tiers == "exact":
        return _exact(target, drafter, num_speculative_tokens, [one for one, _ in found], settings)
    slim_route, file = found[0]
    slim = SlimTarget(target, slim_route)
    if tiers == "observe":
        from slimtier.verifiers.tiered import ObservingVerifier

        return Joined(drafter, ObservingVerifier(target, slim, read_gate(settings)), num_speculative_tokens)
    from slimtier.verifiers.tiered import TieredVerifier

    paper = tiers == "paper"
    gate = read_gate(settings) if paper else calibrated_gate(file, target, drafter, num_speculative_tokens)
    check_reread(gate, slim_route)
    return Joined(drafter, TieredVerifier(target, slim, gate, tiers), num_speculative_tokens)


def verify_on(drafter: Drafter, route: Route, target: Target) -> None:
    """Tell a drafter that decides by what verifying costs at which precision the slim verifier runs."""
    from slimtier.drafters.auto import AutoDrafter
    from slimtier.drafters.cost import price_of

    if isinstance(drafter, AutoDrafter):
        drafter.verified_at("q4" if "q4" in route.precisions else "q8" if route.precisions else price_of(target.info))


def check_reread(gate: Gate, route: Route) -> None:
    """Raises ConfigError where the target could not go on from what the slim verifier writes."""
    if gate.reread is not None and not route.fills_caches:
        raise ConfigError(
            "reread needs keys and values of every layer, and the route skips attention: leave it out, or choose "
            "a route of low precision"
        )


def _refuse_several(tiers: str, routes: list[str]) -> None:
    if tiers != "exact" and len(routes) > 1:
        raise ConfigError(f"tiers {tiers} take one route, and {len(routes)} are given: choose one, or --tiers exact")


def _exact(target: Target, drafter: Drafter, count: int, routes: list[Route], settings: Mapping[str, Any]) -> Joined:
    """Nested from the cheapest route, the last one given, outwards."""
    from slimtier.drafters.tiered import TieredDrafter
    from slimtier.models.slim import SlimTarget
    from slimtier.verifiers.lossless import LosslessVerifier

    flushes = _flushes(settings.get("flush", FLUSH), len(routes))
    for dearer, cheaper in pairwise(routes):
        if not cheaper.thins(dearer):
            raise ConfigError("a route keeps more of a sublayer than the one before it: name the dearer one first")
    for route, flush in zip(reversed(routes), reversed(flushes), strict=True):
        drafter = TieredDrafter(drafter, LosslessVerifier(SlimTarget(target, route)), flush, count)
        count += flush  # the last round may go beyond
    return Joined(drafter, LosslessVerifier(target), count)


def split_routes(route: Any) -> list[str]:
    """The routes that are named, the dearest first: several are divided by commas."""
    if route is None:
        return []
    parts = [str(one).strip() for one in (route if isinstance(route, (list, tuple)) else str(route).split(","))]
    if not all(parts):
        raise ConfigError(f"route is {route!r}: give routes divided by commas, such as q8,q4")
    return parts


def routes_for(info: TargetInfo, route: Any) -> list[str]:
    """Those that are named, or the one that goes without saying."""
    return split_routes(route) or [default_route(info)]


def check_routes(route: Any) -> list[str]:
    """The routes that are named; ConfigError, before a model is loaded, for one that is none."""
    routes = split_routes(route)
    for one in routes:
        check_route(one)
    return routes


def _flushes(value: Any, count: int) -> list[int]:
    """A flush length for each tier, from 11, [11, 5] or "11,5"; one alone is for all."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    try:
        flushes = [int(str(part)) for part in parts]
    except ValueError:
        flushes = []
    if not flushes or min(flushes) < 1 or len(flushes) not in (1, count):
        raise ConfigError(f"flush is {value!r}: give a whole number from 1, or {count} of them, one for each route")
    return flushes * count if len(flushes) == 1 else flushes


def read_gate(settings: Mapping[str, Any]) -> Gate:
    """The gate that the settings describe: a preset, some of its values changed."""
    from dataclasses import replace

    from slimtier.verifiers.gate import Gate

    gate = Gate.preset(str(settings.get("gate", "default")))
    return replace(gate, **{name: value for name, value in settings.items() if name != "gate"})


def calibrated_gate(file: RouteFile | None, target: Target, drafter: Drafter, num_speculative_tokens: int) -> Gate:
    """The gate that `slimtier calibrate` chose. Raises ConfigError where there is none, or where its evidence is about
    another drafter, length of drafts or precision."""
    from slimtier.drafters.base import identity_of
    from slimtier.verifiers.gate import Gate

    if file is None or not file.calibrated:
        raise ConfigError("the route is not calibrated: run `slimtier calibrate` on it")
    asked = {
        "drafter": drafter.name,
        "drafts": identity_of(drafter),
        "num_speculative_tokens": num_speculative_tokens,
        "precision": target.info.precision,
        "runtime": target.info.runtime,
        "stored": target.info.stored,  # of which the route's low precision is made
    }
    for name, value in asked.items():
        if file.calibrated.get(name) != value:
            raise ConfigError(
                f"the route was calibrated with {name} {file.calibrated.get(name)}, and this is {value}: its bound "
                "does not hold here; calibrate anew"
            )
    gate: Any = file.calibrated.get("gate")
    return read_dataclass(Gate, gate, "the calibrated gate")
