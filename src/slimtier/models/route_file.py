"""Routes by name and in files: what the search found, for which model, at what cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimtier.errors import ConfigError, InputError
from slimtier.files import writing
from slimtier.models.adapters import is_adapters, read_adapters
from slimtier.models.rows import refuse_precisions
from slimtier.types import ACTIONS, Route

if TYPE_CHECKING:
    from slimtier.models.base import Target, TargetInfo

FORMAT = 1
NAMES = "none, q4, q8, skip:RATIO, a file from `slimtier route` or a directory from `slimtier repair`"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model a route is for; `digest` is of a part of its embeddings."""

    name: str
    precision: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    digest: str

    @classmethod
    def of(cls, target: Target) -> ModelIdentity:
        info = target.info
        rows = target.weight("embedding")[:64].float().cpu().contiguous().numpy()
        digest = hashlib.sha256(rows.tobytes()).hexdigest()[:16]
        return cls(info.name, info.precision, info.num_layers, info.hidden_size, info.vocab_size, digest)

    def check(self, other: ModelIdentity, path: Path | str) -> None:
        """Raises ConfigError, naming the difference, unless `other` is the same model."""
        for name in ("num_layers", "hidden_size", "vocab_size", "digest"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                at = f" at {self.precision}" if name == "digest" and self.precision != other.precision else ""
                raise ConfigError(
                    f"{path} is a route of {self.name}{at} ({name} {mine}) and the model is {other.name} ({name} "
                    f"{its}): search one for this model with `slimtier route`"
                )


@dataclass(frozen=True, slots=True)
class RouteFile:
    """A route and what is known of it. `found`: how it was searched; `cost`: what a step takes, relative to the
    target's; `divergence`: from the target, on the calibration text; `calibrated`: what `slimtier calibrate` wrote."""

    model: ModelIdentity
    route: Route
    found: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    divergence: Mapping[str, float] = field(default_factory=dict)
    calibrated: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON, written beside and renamed. Raises ConfigError for a route with adapters, which do not fit in."""
        if self.route.adapter:
            raise ConfigError(f"{path} would lose the route's adapters: name a route without, or keep their directory")
        names = ("found", "cost", "divergence", "calibrated", "provenance")
        rest = {name: dict(getattr(self, name)) for name in names if getattr(self, name)}
        with writing(path) as out:
            json.dump({"slimtier_route": FORMAT, **described(self.model, self.route), **rest}, out, indent=1)
            out.write("\n")

    @classmethod
    def read(cls, path: Path) -> RouteFile:
        """Raises InputError, naming what is wrong, for a file that is none of ours."""
        try:
            stored = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a route: {error}") from None
        if not isinstance(stored, dict) or stored.get("slimtier_route") != FORMAT:
            raise InputError(f"{path} is no route file of format {FORMAT}: write one with `slimtier route`")
        try:
            model, route = ModelIdentity(**stored.pop("model")), _route(stored.pop("route"))
            if len(route.attention) != model.num_layers:
                raise ValueError(f"{len(route.attention)} layers of a model of {model.num_layers}")
            del stored["slimtier_route"]
            for name, value in stored.items():
                if not isinstance(value, dict):
                    raise TypeError(f"{name} is {value!r}")
            return cls(model, route, **stored)
        except (KeyError, TypeError, ValueError) as error:
            wrong = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path} is a broken route file ({wrong}): write it anew with `slimtier route`") from None


def described(model: ModelIdentity, route: Route) -> dict[str, Any]:
    """What a file says of a route and its model, as plain values."""
    actions = {"attention": list(route.attention), "mlp": list(route.mlp), "head": route.head}
    return {"model": asdict(model), "route": actions}


def _route(stored: Mapping[str, Any]) -> Route:
    route = Route(tuple(stored["attention"]), tuple(stored["mlp"]), stored["head"])
    wrong = [action for action in (*route.attention, *route.mlp, route.head) if action not in ACTIONS]
    if wrong:
        raise ValueError(f"a sublayer is {wrong[0]!r}")
    if route.head == "skip" or len(route.attention) != len(route.mlp):
        raise ValueError("the head is skipped, or a sublayer is missing")
    return route


def uniform_skip(num_layers: int, ratio: float) -> Route:
    """The route that skips about `ratio` of the layers, evenly spread; the first and the last are kept."""
    inner = num_layers - 2
    count = min(round(ratio * num_layers), inner)
    skipped = [1 + (2 * i + 1) * inner // (2 * count) for i in range(count)]
    return Route.skipping(num_layers, skipped)


def check_route(text: object) -> None:
    """ConfigError, before a model is loaded, for what names no route."""
    name = str(text)
    if name in ("none", "q4", "q8"):
        return
    if not name.startswith("skip:"):
        path = Path(name).expanduser()
        if not path.is_file() and not is_adapters(path):
            raise ConfigError(f"route is {name!r}, which is no file: give {NAMES}")
        return
    try:
        ratio = float(name.removeprefix("skip:"))
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio < 1.0:
        raise ConfigError(f"route is {name!r}: give skip:RATIO with a share of the layers from 0 to below 1")


def find_route(text: object, target: Target) -> tuple[Route, RouteFile | None]:
    """The route that is named, for this target, and the file that it came from; adapters are given to the target.
    Raises ConfigError where it does not fit, InputError or ModelFileError for a broken file."""
    check_route(text)
    found = _named(str(text), target)
    if not target.info.exact:
        refuse_precisions(found[0], "hf" if target.info.runtime == "hf" else "torch")
    return found


def _named(name: str, target: Target) -> tuple[Route, RouteFile | None]:
    info = target.info
    if name == "none":
        return Route.full(info.num_layers), None
    if name in ("q4", "q8"):
        return Route.at(info.num_layers, name), None  # type: ignore[arg-type]
    if name.startswith("skip:"):
        return uniform_skip(info.num_layers, float(name.removeprefix("skip:"))), None
    path = Path(name).expanduser()
    if path.is_dir():
        return _adapted(path, target), None
    found = RouteFile.read(path)
    found.model.check(ModelIdentity.of(target), path)
    return found.route, found


def _adapted(path: Path, target: Target) -> Route:
    """The route of a directory of adapters, which the target then has."""
    adapters, about = read_adapters(path)
    try:
        model, route = ModelIdentity(**about["model"]), _route(about["route"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} does not say its route ({error}): write it anew with `slimtier repair`") from None
    model.check(ModelIdentity.of(target), path)
    adapt = getattr(target, "adapt", None)
    if adapt is None:
        runtime = "hf" if target.info.runtime == "hf" else "torch"
        raise ConfigError(f"{path} has adapters, which only the native CPU kernels run: on {runtime} leave them out")
    adapt(adapters)
    return replace(route, adapter=adapters.digest)


def default_route(info: TargetInfo) -> str:
    """The low precision that is cheap beside the target's own: q4 beside fp32, 16 bits (a file of 4-bit codes loses
    nothing by it) and q8. Raises ConfigError where there is none: only sublayers can be left out."""
    if info.precision == "q4" or not info.exact:
        why = "the target is q4 already" if info.exact else f"{info.runtime} has no kernels of low precision"
        raise ConfigError(f"no route goes without saying here, for {why}: add --route skip:RATIO or a file")
    return "q4"
