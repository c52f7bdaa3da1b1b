"""What decoding did with a draft, round by round, and the target's states along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slimtier.engine import Engine
from slimtier.models.base import Target
from slimtier.prompts import encode_prompt

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Round:
    """One draft: it continued the text's first `start` tokens, and `accepted` of its tokens were output. Of `known`
    tokens it is known whether they are the target's: a draft that was cut off by the text's end tells less."""

    start: int
    known: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt of `num_prompt_tokens` and what was written after it, greedily."""

    tokens: tuple[int, ...]
    num_prompt_tokens: int
    rounds: tuple[Round, ...]


def decode(engine: Engine, prompt: Any, max_new_tokens: int) -> Text:
    """Let the engine answer the prompt at temperature 0 with its drafter."""
    ids = encode_prompt(prompt, engine.tokenizer, engine.target.info.vocab_size)
    tokens, rounds = list(ids), []
    with engine.stream(ids, max_new_tokens=max_new_tokens, temperature=0.0) as stream:
        for step in stream:
            accepted = step.deciders.count("drafter")
            whole = step.deciders[-1] == "target"
            rounds.append(Round(len(tokens), step.drafted if whole else accepted, accepted))
            tokens += step.token_ids
    return Text(tuple(tokens), len(ids), tuple(rounds))


def captured(target: Target, tokens: Sequence[int], layers: Sequence[int]) -> dict[int, torch.Tensor]:
    """The residual stream after each of the layers, at every token but the last: [len(tokens) - 1, hidden]."""
    cache = target.begin(1, len(tokens))
    found: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        piece = list(tokens[start : min(start + _CHUNK, len(tokens) - 1)])
        found.append(target.forward(piece, cache, [len(piece)], capture=layers)[1])
    streams = [torch.cat([part.cpu().float() for part in parts]) for parts in zip(*found, strict=True)]
    return dict(zip(layers, streams, strict=True))
