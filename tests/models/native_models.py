"""Tiny random models of every family native runs, saved by transformers and opened by slimtier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WIDE = {"rope_type": "default", "rope_theta": 5e5}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA = {"head_dim": 24, "sliding_window": 8, "query_pre_attn_scalar": 20, "tie_word_embeddings": True}
_CAPPED = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}
_LOCAL = ["sliding_attention", "full_attention"] * 2

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False, "rope_parameters": _WIDE}),
    "llama3-rope": ("Llama", {"rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 64}}),
    "linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "yarn-rope": ("Llama", {"rope_parameters": _YARN}),
    "mistral": ("Mistral", {"sliding_window": 8, "head_dim": 16}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "gemma2": ("Gemma2", {**_GEMMA, "layer_types": _LOCAL, **_CAPPED}),
    "gemma3": ("Gemma3", {**_GEMMA, "layer_types": _LOCAL}),
}


def build(family: str) -> Any:
    """A transformers model of `family` with wide weights, so that greedy choices are clear (float32, eval)."""
    name, settings = FAMILIES[family]
    text = "TextConfig" if name == "Gemma3" else "Config"
    config = getattr(transformers, f"{name}{text}")(**{**SIZES, **settings})
    torch.manual_seed(sum(map(ord, family)))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.12)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(family: str, directory: Path) -> Any:
    """Save the tiny model under `directory` as safetensors; return the transformers model."""
    model = build(family)
    model.save_pretrained(directory)
    return model
