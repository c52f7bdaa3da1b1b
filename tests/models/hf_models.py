"""Tiny transformers models of many families, and their own logits to compare with."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from slimtier.models.hf import HfTarget

VOCAB = 67
LAYERS = 3
WINDOW = 8
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": LAYERS, "num_heads": 4}
# Gemma's layers alternate sliding and full attention; Gemma 3 has another rope on the sliding ones
GEMMA_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": GEMMA_LAYERS}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**COMMON),
    "mistral": lambda: transformers.MistralConfig(**COMMON, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**COMMON, **GEMMA, final_logit_softcapping=3.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**COMMON, **GEMMA, rope_parameters=GEMMA_ROPES),
    "mixtral": lambda: transformers.MixtralConfig(**COMMON, num_local_experts=4),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**COMMON, **MOE),
    "granite": lambda: transformers.GraniteConfig(**COMMON, logits_scaling=8.0, residual_multiplier=0.5),
    "cohere": lambda: transformers.CohereConfig(**COMMON, logit_scale=0.25),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, **GPT2),
    "t5": lambda: transformers.T5Config(vocab_size=VOCAB, **T5, decoder_start_token_id=0),
}
FAMILIES = list(CONFIGS)
ENCODER_TOKENS = [[5, 9, 13, 7], [21, 3], [30, 31, 32, 33, 34, 35]]


def build(config: Any) -> Any:
    """A tiny model with weights large enough that positions, windows and routers matter."""
    family = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = family.from_config(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.25, generator=generator)
    return model


@functools.cache
def target_of(family: str) -> HfTarget:
    return HfTarget(build(CONFIGS[family]()), name=family)


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny matrices are faster on one thread, and leave the machine to others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sequence(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=length)


def begin(target: HfTarget, num_rows: int, capacity: int = 40) -> Any:
    return target.begin(num_rows, capacity, ENCODER_TOKENS[:num_rows] if target.is_encoder_decoder else None)


@torch.inference_mode()
def own_logits(model: Any, tokens: list[int], row: int = 0) -> torch.Tensor:
    """The model's own logits [T, vocab] for the whole sequence at once, without a cache."""
    ids = torch.tensor([tokens])
    if model.config.is_encoder_decoder:
        encoder_ids = torch.tensor([ENCODER_TOKENS[row]])
        return model(input_ids=encoder_ids, decoder_input_ids=ids, use_cache=False).logits[0]
    return model(input_ids=ids, use_cache=False).logits[0]


def num_hooks(target: HfTarget) -> list[int]:
    """Hooks of each module; transformers leaves some of its own behind."""
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in target.model.modules()]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual / scale, expected / scale, atol=3e-5, rtol=0)
