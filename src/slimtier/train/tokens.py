"""How often tokens stand in what was captured, and which a trimmed head keeps (FR-Spec, Zhao et al. 2025: counts from
text; VocabTrim, Goel et al. 2025: from what the target wrote)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from slimtier.errors import ConfigError
from slimtier.models.tokenizer import Tokenizer
from slimtier.train.shards import RowPlace, Rows

_BYTES = 256


def token_counts(capture: Rows, rows: Iterable[RowPlace], of: Literal["answers", "prompts"]) -> torch.Tensor:
    """How often each token of the vocabulary stands in the rows' answers, or in what they answer; int64 [vocab]."""
    counts = torch.zeros(capture.info.vocab_size, dtype=torch.int64)
    for row in rows:
        token_ids = capture.read_tokens(row)
        answered = torch.zeros(len(token_ids), dtype=torch.bool)
        for first, stop in row.segments:
            answered[first:stop] = True
        counts += torch.bincount(token_ids[answered == (of == "answers")], minlength=len(counts))
    return counts


def meant(capture: Rows, rows: Iterable[RowPlace]) -> torch.Tensor:
    """How much probability the target gave each token over the rows' answers; float64 [vocab]."""
    sums = torch.zeros(capture.info.vocab_size, dtype=torch.float64)
    for place in rows:
        top_ids, top_logprobs = capture.read_labels(place)
        sums.index_add_(0, top_ids.flatten(), top_logprobs.flatten().exp().double())
    return sums


def always_kept(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """End tokens, special tokens and the tokens of single bytes: without them some text cannot be drafted at all."""
    kept = {*tokenizer.eos_token_ids, *(token for token in range(vocab_size) if tokenizer.is_special(token))}
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    spelt = [f"<0x{byte:02X}>" for byte in range(_BYTES)]
    if all(token in vocab for token in spelt):
        kept.update(vocab[token] for token in spelt)
    else:  # byte-level BPE writes each byte as one character
        kept.update(token_id for token, token_id in vocab.items() if len(token) == 1)
    return sorted(token for token in kept if token < vocab_size)


def trimmed_ids(counts: torch.Tensor, size: int, always: Sequence[int]) -> torch.Tensor:
    """The `size` ids of a trimmed head, ascending: all of `always`, then the most frequent, the lower id first among
    equals (so that tokens that never came fill up what is left). Raises ConfigError when there is no room for that."""
    if not len(set(always)) <= size <= len(counts):
        raise ConfigError(
            f"a trimmed head of {size} rows: give at least {len(set(always))} (the tokens that are always kept) and at "
            f"most {len(counts)}"
        )
    ranked = counts.clone()
    ranked[list(always)] = torch.iinfo(torch.int64).max
    return ranked.sort(descending=True, stable=True).indices[:size].sort().values
