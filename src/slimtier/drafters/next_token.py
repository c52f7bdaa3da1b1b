"""What a drafter with logits proposes for a row: drawn as the row itself draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimtier.sampling import choose, is_greedy, probabilities, process, target_token

if TYPE_CHECKING:
    import torch

    from slimtier.drafters.base import DraftContext


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token and the distribution [vocab] it was drawn from (None: it was certain; of a greedy
    token, where the context asks for it, the one at temperature 1). `confidence` is the probability
    of the most probable token, known before the draw (0 where it was not asked for)."""

    token_id: int
    probs: torch.Tensor | None
    confidence: float = 0.0


def next_token(
    logits: torch.Tensor, history: Sequence[int], context: DraftContext, *, confident: bool = False
) -> Drawn:
    """The token after `history` from a model's logits [vocab], by the row's own bias, penalties, temperature, filters
    and coupling. `confident`: the confidence is wanted. Raises NonFiniteError where no distribution follows."""
    params = context.sampling
    processed = process(logits, history, context.num_prompt_tokens, params)
    if is_greedy(params) or params.coupling == "gumbel":
        confidence = float(processed.softmax(0).max()) if confident else 0.0
        reported = processed.float().softmax(0) if context.report and is_greedy(params) else None
        return Drawn(target_token(processed, params, context.noise, len(history)), reported, confidence)
    probs = probabilities(processed, params)
    confidence = float(probs.max()) if confident else 0.0
    return Drawn(choose(probs, params, context.noise, len(history)), probs, confidence)
