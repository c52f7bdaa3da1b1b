"""What a route does to the target's distributions, on text that the target wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from slimtier.decode import prefill
from slimtier.models.slim import SlimTarget
from slimtier.route.objective import Divergence, divergences

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.route.calibration import Text
    from slimtier.types import Route

_CHUNK = 64  # positions whose logits are held at a time


class Judge:
    """A target and texts, each read up to its stretch once. A route goes on from there, as a slim verifier does from
    what the target has verified: it reads the target's keys and values of the prompt, writes its own for the stretch,
    and these are cropped again. So an evaluation is one forward of the stretches' tokens.

    The target's log-probabilities are worked out once and kept: positions × vocabulary × 4 bytes (512 positions take
    100 MB for 49,152 tokens, 540 MB for 262,144).
    """

    def __init__(self, target: Target, texts: Sequence[Text], alpha: float = 0.5, beta: float = 0.5) -> None:
        self.target, self.texts = target, tuple(texts)
        self.alpha, self.beta = alpha, beta
        self.positions = sum(text.stop - text.start for text in texts)
        self._tokens = [token for text in texts for token in text.token_ids[text.start - 1 : text.stop - 1]]
        self._lengths = [text.stop - text.start for text in texts]
        self._cache = self._read()
        self._target = list(self._chunks(target))

    def _read(self) -> Cache:
        inputs, longest = [text.inputs for text in self.texts], max(text.stop for text in self.texts)
        cache = self.target.begin(len(self.texts), longest, inputs if any(inputs) else None)
        prefill(self.target, cache, [text.token_ids[: text.start] for text in self.texts])
        return cache

    @torch.inference_mode()
    def _chunks(self, target: Target) -> Iterator[torch.Tensor]:
        """Log-probabilities [n, vocab] of the stretches' positions, text by text, a chunk at a time."""
        before = list(self._cache.lengths)
        try:
            hidden, _ = target.forward(self._tokens, self._cache, self._lengths)
        finally:
            self._cache.crop(before)
        for begin in range(0, len(hidden), _CHUNK):
            yield target.head(hidden[begin : begin + _CHUNK]).float().cpu().log_softmax(-1)

    def log_probs(self, route: Route) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Log-probabilities of the target and of the route, [n, vocab] each, a chunk of positions at a time."""
        return zip(self._target, self._chunks(SlimTarget(self.target, route)), strict=True)

    def __call__(self, route: Route) -> Divergence:
        """How far the route is from the target, on all positions."""
        with torch.inference_mode():
            parts = [divergences(own, slim, self.alpha, self.beta) for own, slim in self.log_probs(route)]
        return Divergence.mean(parts)
