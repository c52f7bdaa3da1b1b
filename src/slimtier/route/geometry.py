"""Where a slim verifier stands between a drafter and a target (VIA-SD, section 3): p the draft, u the slim verifier, q
the target, all at temperature 1, along text that the target wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from slimtier.decode import PREFILL_CHUNK
from slimtier.drafters.base import DraftContext, Reading
from slimtier.errors import ConfigError
from slimtier.noise import Noise
from slimtier.route.objective import cost, kl, total_variation
from slimtier.types import SamplingParams

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.models.base import Target
    from slimtier.route.calibration import Text
    from slimtier.route.judge import Judge
    from slimtier.types import Route

_LEAST = -1e4  # log-probability of a token that the drafter cannot propose
_AT_ONE = SamplingParams(temperature=1.0, seed=0)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A number a position in each of `columns`: KL and total variation of the three pairs, and `usefulness`,
    C(q ‖ p) − C(u ‖ p) − C(q ‖ u) (equation 7): above 0 the slim verifier saves more than it costs."""

    drafter: str
    columns: dict[str, list[float]]

    @property
    def means(self) -> dict[str, float]:
        return {name: fmean(values) for name, values in self.columns.items()}

    @property
    def useful_share(self) -> float:
        """Of positions, those where the criterion holds."""
        return fmean(value > 0 for value in self.columns["usefulness"])

    @property
    def shorter_share(self) -> float:
        """Of positions, those where KL(p ‖ u) + KL(u ‖ q) is at most KL(p ‖ q)."""
        names = ("kl_draft_slim", "kl_slim_target", "kl_draft_target")
        rows = zip(*(self.columns[name] for name in names), strict=True)
        return fmean(first + second <= whole for first, second, whole in rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        shares = {"useful_share": self.useful_share, "shorter_share": self.shorter_share}
        positions = len(self.columns["usefulness"])
        return {"drafter": self.drafter, "positions": positions, "means": self.means, **shares, "columns": self.columns}


@torch.inference_mode()
def analyse(
    drafter: Drafter, judge: Judge, route: Route, progress: Callable[[int, int], None] = lambda done, total: None
) -> Geometry:
    """Compare the drafter, the target on the route, and the target, at every position of the judge's text.

    Raises ConfigError for a drafter that proposes without a distribution.
    """
    drafted = (row for text in judge.texts for row in draft_log_probs(drafter, judge.target, text))
    columns: dict[str, list[float]] = {}
    for target, slim in judge.log_probs(route):
        draft = torch.stack(list(islice(drafted, len(target))))
        for name, values in _columns(draft, slim, target, judge.alpha, judge.beta).items():
            columns.setdefault(name, []).extend(values.tolist())
        progress(len(columns["usefulness"]), judge.positions)
    return Geometry(drafter.name, columns)


def _columns(
    draft: torch.Tensor, slim: torch.Tensor, target: torch.Tensor, alpha: float, beta: float
) -> dict[str, torch.Tensor]:
    pairs = {"draft_target": (draft, target), "draft_slim": (draft, slim), "slim_target": (slim, target)}
    found = {f"kl_{name}": kl(*pair) for name, pair in pairs.items()}
    found |= {f"tv_{name}": total_variation(*pair) for name, pair in pairs.items()}
    useful = cost(target, draft, alpha, beta) - cost(slim, draft, alpha, beta) - cost(target, slim, alpha, beta)
    return {**found, "usefulness": useful}


def draft_log_probs(drafter: Drafter, target: Target, text: Text) -> Iterator[torch.Tensor]:
    """For each position of the text's stretch the log-probabilities [vocab] that the drafter gives the first token of a
    draft there, by what it is: its own distribution at temperature 1, after the text's own tokens."""
    ids = list(text.token_ids)
    features = _features(target, ids[: text.stop - 1], drafter.capture)
    noise = Noise.of(0, stream="drafter")
    read = 0
    try:
        for place in range(text.start, text.stop):
            if features is not None:
                drafter.read([Reading(0, ids[:place], read, features[read : place - 1])])
                read = place - 1
            (draft,) = drafter.propose([DraftContext(0, ids[:place], text.start, _AT_ONE, noise)], [1])
            if draft.probs is None or len(draft.token_ids) == 0:
                raise ConfigError(f"drafter {drafter.name} reports no distribution: choose a draft or a draft_model")
            yield draft.probs[0].float().cpu().log().clamp_min(_LEAST)
    finally:
        drafter.reset([0])


def _features(target: Target, ids: list[int], layers: tuple[int, ...]) -> torch.Tensor | None:
    """The residual streams after the layers, side by side, [len(ids), streams · hidden]."""
    if not layers:
        return None
    cache, found = target.begin(1, len(ids) + 1), []
    for begun in range(0, len(ids), PREFILL_CHUNK):
        piece = ids[begun : begun + PREFILL_CHUNK]
        found.append(torch.cat(target.forward(piece, cache, [len(piece)], capture=layers)[1], -1))
    return torch.cat(found)
