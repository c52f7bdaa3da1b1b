"""The teacher-forced audit: where an answer is not what the target would have written after the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slimtier.decode import PREFILL_CHUNK, prefill
from slimtier.penalties import changes_logits, process
from slimtier.sampling import is_greedy
from slimtier.types import SamplingParams

if TYPE_CHECKING:
    import torch

    from slimtier.models.base import Target

QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Audit:
    """What the target says of each output token, given the tokens before it. `differs`: it is not the target's argmax.
    `shortfall`: 1 - target_probs[token] / max target_probs, after penalties and bias, before temperature and filters:
    0 is the target's own choice or a tie with it, near 1 what it would hardly have written. `greedy`: the answer was
    to be the most probable tokens."""

    differs: tuple[bool, ...]
    shortfall: tuple[float, ...]
    greedy: bool

    @property
    def mean(self) -> float:
        """The share of tokens that differ; 0 of an empty answer."""
        return sum(self.differs) / len(self.differs) if self.differs else 0.0

    @property
    def divergence(self) -> float | None:
        """The same where it says what lossy decoding did; None above temperature 0, where a faithful answer too holds
        tokens that are not the argmax."""
        return self.mean if self.greedy else None

    def shortfall_quantiles(self, levels: Sequence[float] = QUANTILES) -> dict[float, float]:
        """Level -> the shortfall that this share of the tokens does not exceed; empty for an empty answer."""
        if not self.shortfall:
            return {}
        return dict(zip(levels, np.quantile(self.shortfall, levels).tolist(), strict=True))


def audit(
    target: Target, prompt_ids: Sequence[int], output_ids: Sequence[int], sampling: SamplingParams | None = None
) -> Audit:
    """Let the target read the prompt and the answer on a cache of its own, and judge each token of the answer.

    For an encoder-decoder `prompt_ids` are the encoder's tokens. Where the runtime is not exact
    (`TargetInfo.exact`), a near-tie may count as different. Raises NonFiniteError for a model whose output is none.
    """
    sampling = sampling or SamplingParams()
    inputs, prompt = None, list(prompt_ids)
    if getattr(target, "is_encoder_decoder", False):
        inputs, prompt = [prompt], [target.decoder_start_token_id]  # type: ignore[attr-defined]
    tokens = [*prompt, *output_ids]
    cache = target.begin(1, len(tokens), inputs)
    prefill(target, cache, [prompt])
    differs: list[bool] = []
    shortfall: list[float] = []
    for start in range(len(prompt), len(tokens), PREFILL_CHUNK):
        stop = min(start + PREFILL_CHUNK, len(tokens))
        hidden, _ = target.forward(tokens[start - 1 : stop - 1], cache, [stop - start])
        if changes_logits(sampling):
            histories = (tokens[:end] for end in range(start, stop))
            rows = zip(target.head(hidden), histories, strict=True)
            processed = [process(logits, history, len(prompt), sampling) for logits, history in rows]
            best = [int(logits.argmax()) for logits in processed]
            found = [_shortfall(logits, token) for logits, token in zip(processed, tokens[start:stop], strict=True)]
        else:
            best = target.head(hidden, "argmax")
            found = _shortfalls(target, hidden, best, tokens[start:stop])
        differs += [token != own for token, own in zip(tokens[start:stop], best, strict=True)]
        shortfall += found
    return Audit(tuple(differs), tuple(shortfall), is_greedy(sampling))


def _shortfalls(target: Target, hidden: torch.Tensor, best: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Of tokens after hidden [N, hidden], whose argmaxes are known: only where they differ logits are computed."""
    found = [0.0] * len(tokens)
    others = [place for place, token in enumerate(tokens) if token != best[place]]
    if others:
        for place, logits in zip(others, target.head(hidden[others]), strict=True):
            found[place] = _shortfall(logits.float(), tokens[place])
    return found


def _shortfall(logits: torch.Tensor, token: int) -> float:
    return 1.0 - float((logits[token] - logits.max()).exp())
