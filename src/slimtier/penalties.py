"""Logits before temperature: bias, penalties, n-gram bans and custom processors, from a row's own history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from slimtier.errors import InputError

if TYPE_CHECKING:
    from slimtier.types import LogitsProcessor, SamplingParams


def changes_logits(params: SamplingParams) -> bool:
    """Whether `process` may return anything but the logits it is given."""
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.no_repeat_ngram > 0
        or params.processors
    )


def process(
    logits: torch.Tensor, token_ids: Sequence[int], num_prompt_tokens: int, params: SamplingParams
) -> torch.Tensor:
    """The logits [vocab] of the token after `token_ids`, as the request wants them before temperature and filters.

    In this order: bias, repetition penalty, presence and frequency penalties, no_repeat_ngram, custom processors.
    The argument is never written to. A processor must be a pure function of (token ids, logits): it is asked about
    drafts that are then rejected, so state of its own would run ahead of the output; what it needs to know of the
    past it computes from the token ids. Raises InputError for a processor that returns anything but logits [vocab].
    """
    logits = logits.float()
    if not changes_logits(params):
        return logits
    scores = logits.clone()
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    if params.repetition_penalty != 1.0:
        _repetition(scores, token_ids, params.repetition_penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        _presence_and_frequency(scores, token_ids[num_prompt_tokens:], params)
    if params.no_repeat_ngram > 0:
        banned = _ngram_completions(token_ids, params.no_repeat_ngram)
        scores[torch.tensor(banned, dtype=torch.long, device=scores.device)] = -torch.inf
    for processor in params.processors:
        scores = _custom(processor, token_ids, scores)
    return scores


def _repetition(scores: torch.Tensor, token_ids: Sequence[int], penalty: float) -> None:
    """CTRL's penalty (Keskar et al. 2019, eq. 2) as transformers applies it: a seen token's positive score is divided
    by the penalty, a negative one multiplied, once however often it was seen."""
    seen = torch.tensor(sorted(set(token_ids)), dtype=torch.long, device=scores.device)
    values = scores[seen]
    scores[seen] = torch.where(values < 0, values * penalty, values / penalty)


def _presence_and_frequency(scores: torch.Tensor, output_ids: Sequence[int], params: SamplingParams) -> None:
    counts = Counter(output_ids)
    seen = torch.tensor(list(counts), dtype=torch.long, device=scores.device)
    times = torch.tensor(list(counts.values()), dtype=torch.float32, device=scores.device)
    scores[seen] -= params.frequency_penalty * times + params.presence_penalty


def _ngram_completions(token_ids: Sequence[int], size: int) -> list[int]:
    """The tokens that would repeat an n-gram of `size` tokens that the row holds already, sorted.

    >>> _ngram_completions([1, 2, 3, 1, 2], 3)
    [3]
    """
    prefix = tuple(token_ids[len(token_ids) - size + 1 :])
    if len(prefix) < size - 1:
        return []
    starts = range(len(token_ids) - size + 1)
    return sorted({token_ids[i + size - 1] for i in starts if tuple(token_ids[i : i + size - 1]) == prefix})


def _custom(processor: LogitsProcessor, token_ids: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
    shape = tuple(scores.shape)
    result: object = processor(tuple(token_ids), scores)
    if not isinstance(result, torch.Tensor) or tuple(result.shape) != shape:
        got = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else f"{result!r}"
        name = getattr(processor, "__name__", type(processor).__name__)
        raise InputError(f"logits processor {name!r} returned {got}: return the logits, a tensor of shape {shape}")
    return result.to(device=scores.device, dtype=torch.float32)
