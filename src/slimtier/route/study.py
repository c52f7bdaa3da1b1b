"""The study: every evaluation of a search, kept by Optuna, so that a search goes on after a kill and several processes
may work on one.

A trial's value is the objective; its user attributes are `levels` (the route, a digit a unit), `proposal` (what it came
from), `reused` (whether the route was known already) and `divergence`. What else is evaluated, the baselines, is an
attribute of the study, so that it is not evaluated again either.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimtier.errors import ConfigError, MissingDependencyError
from slimtier.route.objective import Divergence
from slimtier.route.space import Levels

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

_PATIENCE_S = 60  # for a database that another process writes to
_TRIES, _PAUSE_S = 5, 0.2
_ROUTE, _COST = "route ", "cost"


@dataclass(frozen=True, slots=True)
class Tried:
    """A finished trial."""

    number: int
    levels: Levels
    divergence: Divergence
    proposal: str
    value: float


def study_name(parts: Mapping[str, Any]) -> str:
    """A name that is the same for the same search: model, text and settings."""
    text = json.dumps(parts, sort_keys=True, default=list)
    return f"slimtier-route-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def need_optuna() -> None:
    """MissingDependencyError where Optuna or scipy, which its sampler works with, is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"route needs {' and '.join(missing)}: pip install 'slimtier[route]'")


class Store:
    """The study of one search at an Optuna storage URL; what is known is never evaluated again."""

    def __init__(self, name: str, url: str) -> None:
        self.url = url
        self.study: Study = _open(name, url)

    def finished(self) -> list[Tried]:
        """All trials of all processes that have ended well."""
        from optuna.trial import TrialState

        return [_tried(one) for one in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]

    def known(self, levels: Levels) -> Divergence | None:
        """What the route was found to be, in a trial or beside them."""
        stored = self.study.user_attrs.get(_ROUTE + _digits(levels))
        if stored is not None:
            return Divergence(**stored)
        return next((one.divergence for one in self.finished() if one.levels == levels), None)

    def evaluated(self, levels: Levels, judge: Callable[[], Divergence]) -> Divergence:
        """What is known of the route, else what `judge` finds, which is kept."""
        found = self.known(levels)
        if found is None:
            found = judge()
            self.study.set_user_attr(_ROUTE + _digits(levels), found.to_dict())
        return found

    def trial(self, propose: Callable[[int], tuple[Levels, str]], judge: Callable[[Levels], Divergence],
              value: Callable[[Divergence], float]) -> None:  # fmt: skip
        """One more trial: what `propose` says for its number, from 1, is judged and told. One that is broken off
        counts as failed."""
        from optuna.trial import TrialState

        trial = self.study.ask()
        try:
            levels, proposal = propose(trial.number + 1)
            known = self.known(levels)
            divergence = judge(levels) if known is None else known
            attributes = {"levels": _digits(levels), "proposal": proposal, "reused": known is not None}
            for name, said in {**attributes, "divergence": divergence.to_dict()}.items():
                trial.set_user_attr(name, said)
            self.study.tell(trial, value(divergence))
        except BaseException:
            self.study.tell(trial, state=TrialState.FAIL)
            raise

    def cost(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The step cost that the first process measured: a budget of time must not move within a study."""
        if _COST not in self.study.user_attrs:
            self.study.set_user_attr(_COST, measure())
        stored: dict[str, Any] = self.study.user_attrs[_COST]
        return stored


def _digits(levels: Levels) -> str:
    return "".join(map(str, levels))


def _tried(trial: FrozenTrial) -> Tried:
    stored = trial.user_attrs
    levels = tuple(map(int, stored["levels"]))
    assert trial.value is not None
    return Tried(trial.number, levels, Divergence(**stored["divergence"]), stored["proposal"], trial.value)


def _open(name: str, url: str) -> Study:
    import optuna
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = {"connect_args": {"timeout": _PATIENCE_S}} if url.startswith("sqlite") else None
    for left in reversed(range(_TRIES)):
        try:
            storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
            return optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
        except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
            if left and isinstance(error, DBAPIError):  # another process makes the tables at this moment
                time.sleep(_PAUSE_S)
                continue
            raise ConfigError(
                f"storage {url} cannot be used ({str(error).splitlines()[0]}): "
                "give an Optuna URL such as sqlite:///routes.db"
            ) from error
    raise AssertionError("the last try returns or raises")
