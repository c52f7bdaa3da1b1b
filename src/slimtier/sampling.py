"""From a row's logits to its next token, and the rule by which a drafted token is accepted: pure functions.

Every tensor is one row, [vocab], so that what a row gets never depends on its neighbours in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch

from slimtier.errors import InputError, NonFiniteError
from slimtier.noise import Noise
from slimtier.penalties import changes_logits, process
from slimtier.types import Coupling

if TYPE_CHECKING:
    from slimtier.types import SamplingParams

__all__ = [
    "Noise",
    "accept_probability",
    "choose",
    "is_greedy",
    "judge",
    "needs_logits",
    "probabilities",
    "process",
    "residual",
    "sample",
    "target_token",
    "validate",
    "without",
]

GREEDY_TEMPERATURE = 1e-5
_TINY = math.ulp(0.0)
_HUGE = math.nextafter(math.inf, 0.0)
_RANGES = (
    ("temperature", 0.0, _HUGE, "give 0 (greedy) or a positive number"),
    ("top_p", _TINY, 1.0, "give a number above 0 and at most 1 (off)"),
    ("min_p", 0.0, 1.0, "give a number from 0 (off) to 1"),
    ("repetition_penalty", _TINY, _HUGE, "give a number above 0 (1 is off)"),
    ("presence_penalty", -_HUGE, _HUGE, "give a finite number (0 is off)"),
    ("frequency_penalty", -_HUGE, _HUGE, "give a finite number (0 is off)"),
)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most probable token is always taken: temperature 0, or one too small to divide by."""
    return params.temperature <= GREEDY_TEMPERATURE


def needs_logits(params: SamplingParams) -> bool:
    """False when the model's own argmax decides, so that a fused head+argmax may do (the filters keep the argmax)."""
    return not is_greedy(params) or changes_logits(params)


def validate(params: SamplingParams, vocab_size: int) -> None:
    """Raises InputError, naming the parameter and what it may be, for values that have no meaning."""
    for name, low, high, meaning in _RANGES:
        value = getattr(params, name)
        if not _is_number(value) or not low <= value <= high:
            raise InputError(f"{name} is {value!r}: {meaning}")
    for name in ("top_k", "no_repeat_ngram"):
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
            raise InputError(f"{name} is {value!r}: give a whole number, 0 (off) or more")
    _validate_bias(params.logit_bias, vocab_size)
    if params.seed is not None and (isinstance(params.seed, bool) or not isinstance(params.seed, Integral)):
        raise InputError(f"seed is {params.seed!r}: give a whole number, or None for a new one each time")
    if params.coupling not in get_args(Coupling):
        raise InputError(f"coupling is {params.coupling!r}: give one of {', '.join(get_args(Coupling))}")
    for processor in params.processors:
        if not callable(processor):
            raise InputError(f"processors holds {processor!r}: each must be callable as f(token_ids, logits)")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _validate_bias(logit_bias: Mapping[int, float], vocab_size: int) -> None:
    for token, bias in logit_bias.items():
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < vocab_size:
            raise InputError(f"logit_bias names token {token!r}: give token ids from 0 to {vocab_size - 1}")
        if not _is_number(bias) or math.isnan(bias) or bias == math.inf:
            raise InputError(f"logit_bias of token {token} is {bias!r}: give a finite number, or -inf to ban the token")


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution [vocab], float32, that processed logits [vocab] stand for.

    Temperature, top-k, top-p, min-p in that order, as in transformers; each filter sees what the one before left, and
    at least one token stays. Tokens tied at the edge: top-k keeps them all, top-p those of the lowest ids that it
    needs. Greedy: all on the argmax. Raises NonFiniteError when no distribution follows from the logits.
    """
    if is_greedy(params):
        return torch.zeros_like(logits, dtype=torch.float32).index_fill_(0, _argmax(logits).reshape(1), 1.0)
    scores = logits.float()
    top = _finite(float(scores.max()))
    scores = (scores - top) / params.temperature
    if 0 < params.top_k < scores.numel():
        scores = _at_least(scores, float(scores.topk(params.top_k).values[-1]), -torch.inf)
    probs = scores.softmax(0)
    if params.top_p < 1.0:
        probs = _nucleus(probs, params.top_p)
    if params.min_p > 0.0:
        probs = _at_least(probs, params.min_p * float(probs.max()), 0.0)
    return probs / probs.sum() if params.top_p < 1.0 or params.min_p > 0.0 else probs


def _at_least(values: torch.Tensor, floor: float, otherwise: float) -> torch.Tensor:
    """`values` with everything below `floor` replaced. threshold() keeps what is above its mark, hence the step down;
    it takes a tenth of the time of masked_fill."""
    below = np.nextafter(np.float32(floor), np.float32(-np.inf))
    return torch.nn.functional.threshold(values, float(below), otherwise)


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """`probs` with everything outside the nucleus set to 0 (Holtzman et al. 2020): the fewest most probable tokens
    that reach top_p together. Only tokens above (1 - top_p) / vocab can be in it, for all others together hold less
    than 1 - top_p; half of that is the cut here, so that rounding is on the safe side."""
    ranked = _ranked(probs, 0.5 * (1.0 - top_p) / probs.numel())
    mass_before = ranked.cumsum(0, dtype=torch.float64) - ranked
    size = int((mass_before < top_p).sum())
    edge = float(ranked[size - 1])
    inside = _at_least(probs, edge, 0.0)
    surplus = int((ranked >= edge).sum()) - size
    if surplus:
        inside[(probs == edge).nonzero().reshape(-1)[-surplus:]] = 0.0
    return inside


def _ranked(probs: torch.Tensor, floor: float) -> torch.Tensor:
    """The probabilities above `floor`, highest first."""
    if probs.device.type != "cpu":
        return probs[probs > floor].sort(descending=True).values
    values = probs.detach().numpy()  # numpy selects and sorts many times faster than torch on a CPU
    return torch.from_numpy(np.sort(np.compress(values > floor, values))).flip(0)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The lowest id of the highest logit, as a 0-d tensor."""
    token = logits.argmax()
    _finite(float(logits[token]))
    return token


def _finite(top: float) -> float:
    """The highest logit, if a distribution follows from it (a NaN anywhere makes the maximum NaN)."""
    if math.isfinite(top):
        return top
    if top == -math.inf:
        raise NonFiniteError("every token is banned at this position: loosen logit_bias, no_repeat_ngram or processors")
    raise NonFiniteError(f"the highest logit is {top}: check the model's weights, or run it at a higher precision")


def sample(probs: torch.Tensor, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the cumulated probabilities [vocab]; they need not sum to 1, and a token of
    probability 0 is never returned. Raises NonFiniteError when they do not sum to a positive number."""
    cumulated = probs.cumsum(0, dtype=torch.float64)
    total = float(cumulated[-1])
    if not (math.isfinite(total) and total > 0.0):
        raise NonFiniteError(f"probabilities sum to {total}: they must be finite and not all zero")
    # side="right" finds the first entry above the mark, where the sum has just grown: not a zero. Rounding must not
    # push the mark up to the total, which no entry exceeds.
    mark = min(uniform * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(cumulated, mark, right=True))


def choose(probs: torch.Tensor, params: SamplingParams, noise: Noise, position: int) -> int:
    """A token of the distribution [vocab]: the most probable one when greedy; argmax of log probability + gumbel
    under coupling="gumbel"; otherwise at the noise's next uniform. `position` is the token's index in the row."""
    if is_greedy(params):
        return int(_argmax(probs))
    if params.coupling == "gumbel":
        return int((probs.log() + noise.gumbel(position, probs.numel()).to(probs.device)).argmax())
    return sample(probs, noise.uniform())


def target_token(logits: torch.Tensor, params: SamplingParams, noise: Noise, position: int) -> int:
    """The token that processed logits [vocab] choose for `position`: what plain decoding emits, what a verifier
    compares a draft with, what a drafter proposes. Greedy takes the lowest id of a tie."""
    if is_greedy(params):
        return int(_argmax(logits))
    return choose(probabilities(logits, params), params, noise, position)


def judge(
    drafted: int,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    params: SamplingParams,
    noise: Noise,
    position: int,
    lenience: float = 0.0,
) -> tuple[int, bool]:
    """One slot of a block: the output token for `position`, and whether it is the drafted one.

    `logits` [vocab] are the target's, processed; `draft_probs` [vocab] is what `drafted` was drawn from, None = it was
    certain. Greedy and gumbel coupling keep the draft if the target chooses the same token. Otherwise speculative
    sampling (Leviathan et al. 2023, algorithm 1): keep with `accept_probability`, replace from `residual`. Lenience
    above 0 is lossy: greedily it keeps a token whose probability is at least (1 - lenience) of the target's highest
    (Token-V3 of speculative cascades, Narasimhan et al. 2025).
    """
    if is_greedy(params) or params.coupling == "gumbel":
        own = target_token(logits, params, noise, position)
        near = lenience > 0.0 and float(logits[drafted] - logits[own]) >= math.log1p(-lenience)
        return (drafted, True) if drafted == own or near else (own, False)
    target_probs = probabilities(logits, params)
    draft_prob = 1.0 if draft_probs is None else float(draft_probs[drafted])
    if noise.uniform() < accept_probability(float(target_probs[drafted]), draft_prob, lenience):
        return drafted, True
    rest = without(target_probs, drafted) if draft_probs is None else residual(target_probs, draft_probs)
    return sample(rest, noise.uniform()), False


def accept_probability(target_prob: float, draft_prob: float, lenience: float = 0.0) -> float:
    """min(1, target / ((1 - lenience) draft)): the chance that a token drawn with `draft_prob` is kept (Leviathan et
    al. 2023, Chen et al. 2023; lenience 0 is the lossless rule). 0 for a token that the target cannot produce."""
    allowed = (1.0 - lenience) * draft_prob
    if target_prob >= allowed:
        return 1.0 if target_prob > 0.0 else 0.0
    return target_prob / allowed


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """norm((target - draft)+) [vocab]: what a rejected token is replaced from, so that draft and replacement together
    follow the target. Where nothing is left (equal distributions, or non-finite draft_probs): the target itself."""
    rest = (target_probs - draft_probs).clamp_(min=0.0)
    total = float(rest.sum())
    return rest / total if math.isfinite(total) and total > 0.0 else target_probs


def without(target_probs: torch.Tensor, token: int) -> torch.Tensor:
    """The residual of a draft that was certain of `token`: the target's distribution without it, normalised."""
    rest = target_probs.clone()
    rest[token] = 0.0
    total = float(rest.sum())
    return rest / total if total > 0.0 else target_probs
