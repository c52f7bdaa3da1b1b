"""What the tests of `custom_generate` share: tiny models, prompts, callables, the comparison with plain generate."""

from __future__ import annotations

import functools
from typing import Any

import torch

import slimtier
from tests.models.hf_models import CONFIGS, build, sequence

FAMILIES = ["llama", "qwen3", "gemma3", "mixtral", "gpt2", "t5"]
NEW = 16
EXTRA_SETTINGS: dict[str, dict[str, Any]] = {"layer_skip": {"skip_layers": [1]}}


@functools.cache
def model_of(family: str) -> Any:
    config = CONFIGS[family]()
    if family == "t5":  # transformers' own generate has caches for as many layers as the encoder has
        config.num_decoder_layers = config.num_layers
    return build(config)


def batch(family: str, rows: int = 3) -> dict[str, torch.Tensor]:
    """Prompts of unequal length, of which the second repeats itself; padded on the left (an encoder's on the right)."""
    texts = [sequence(7, 4), [9, 8, 7, 6, 9, 8, 7, 6, 9, 8], sequence(3, 5)][:rows]
    length = max(len(text) for text in texts)
    left = CONFIGS[family]().is_encoder_decoder is False
    ids, mask = [], []
    for text in texts:
        fill = [0] * (length - len(text))
        ids.append([*fill, *text] if left else [*text, *fill])
        mask.append([0] * len(fill) + [1] * len(text) if left else [1] * len(text) + [0] * len(fill))
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@functools.cache
def speculation(drafter: str, k: int = 4) -> Any:
    """A callable that many tests share: its parts are made once for a model."""
    return slimtier.custom_generate(drafter=drafter, num_speculative_tokens=k, **EXTRA_SETTINGS.get(drafter, {}))


@functools.cache
def self_drafting(family: str, k: int = 4) -> Any:
    """A draft that is nearly always right: blocks are accepted whole, and ends fall inside them."""
    return slimtier.custom_generate(drafter="draft_model", draft_model=model_of(family), num_speculative_tokens=k)


def assert_as_plain(model: Any, speculate: Any, **options: Any) -> torch.Tensor:
    plain = model.generate(**options)
    found = model.generate(**options, custom_generate=speculate)
    assert found.tolist() == plain.tolist()
    assert found.dtype == plain.dtype
    return plain
