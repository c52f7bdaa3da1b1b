"""A network's state -> a draft's directory: EAGLE's names, everything that matters written explicitly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from slimtier.checkpoint import OWN, require_tensors, write_checkpoint
from slimtier.drafters.eagle.capture_ids import CONVENTION, IDS
from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.layouts import (
    CODES,
    EMBEDDING,
    MEMBERS,
    OFFSETS,
    SCALES,
    network_names,
    network_shapes,
    spelt,
)
from slimtier.drafters.eagle.stored import GROUP
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.errors import ConfigError, NonFiniteError
from slimtier.models.config import RopeConfig
from slimtier.models.precision import quantize8

StoredAs = Literal["fp32", "fp16", "q8"]
_ARCHITECTURES = {
    "full": "LlamaForCausalLMEagle3",
    "trimmed": "LlamaForCausalLMEagle3",
    "slim": "SlimLlamaForCausalLMEagle3",
    "routed": "RoutedLlamaForCausalLMEagle3",
}
_TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "q8": "float16"}


def save_draft(
    state: Mapping[str, torch.Tensor],
    config: EagleConfig,
    path: Path | str,
    provenance: Mapping[str, Any],
    *,
    target: TargetRecord,
    dtype: StoredAs = "fp16",
    replace: bool = False,
) -> None:
    """Write a draft that `read_draft` opens, from `EagleNetwork.state_dict()`; an "embedding" in it is written too.

    dtype q8: matrices as 8-bit codes in groups of 32, norms in float32. The directory is there whole or not at all.
    Raises ConfigError when it exists and is not to be replaced, or when the target is not one for `config`;
    NonFiniteError for a number that `dtype` cannot hold; ModelFileError when `state` does not fit, or the disk.
    """
    path = Path(path)
    if (target.vocab_size, target.hidden_size) != (config.head.vocab_size, config.target_hidden_size):
        raise ConfigError(
            f"the draft reads {config.target_hidden_size} wide features and knows {config.head.vocab_size} tokens, "
            f"{target.name} has {target.hidden_size} and {target.vocab_size}: give the record of its own target"
        )
    found = {name: tuple(tensor.shape) for name, tensor in state.items() if name not in ("embedding", "head.ids")}
    require_tensors(path, network_shapes(config), found)
    tensors: dict[str, NDArray[Any]] = {}
    names = {spelt(theirs, "eagle"): ours for theirs, ours in network_names(config).items()}
    if "embedding" in state:
        names[EMBEDDING] = "embedding"
    for theirs, ours in names.items():
        tensors |= _stored(theirs, state[ours].detach().to("cpu", torch.float32).numpy(), dtype)
    if config.head.kind == "trimmed":
        tensors |= _vocabulary(state["head.ids"].cpu().numpy(), config.head.vocab_size)
    write_checkpoint(path, config_values(config, target, dtype), tensors, provenance, replace=replace)


def _stored(name: str, values: NDArray[np.float32], dtype: StoredAs) -> dict[str, NDArray[Any]]:
    if not np.isfinite(values).all():
        raise NonFiniteError(f"tensor {name} has values that are not finite; train again from an earlier checkpoint")
    if dtype == "fp32" or (dtype == "q8" and values.ndim == 1):
        return {name: values}
    with np.errstate(over="ignore"):
        if dtype == "fp16":
            halves = values.astype(np.float16)
            stored, rounded = {name: halves}, halves
        else:
            codes = quantize8(values)
            rounded = codes.scales.astype(np.float16)
            stored = {name + CODES: codes.codes, name + SCALES: rounded}
    if not np.isfinite(rounded).all():
        raise NonFiniteError(f"tensor {name} has values that float16 cannot hold; save it as fp32")
    return stored


def _vocabulary(ids: NDArray[np.int64], vocab_size: int) -> dict[str, NDArray[Any]]:
    members = np.zeros(vocab_size, dtype=np.bool_)
    members[ids] = True
    return {OFFSETS: ids - np.arange(len(ids)), MEMBERS: members}


def config_values(config: EagleConfig, target: TargetRecord, dtype: StoredAs) -> dict[str, Any]:
    """config.json. Programs that know EAGLE-3 find their fields; nothing is left to a default."""
    head, norms = config.head, config.norms
    values: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[head.kind]],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": target.max_positions,
        **_rope_values(config.rope),
        "vocab_size": head.vocab_size,
        "draft_vocab_size": head.size if head.kind == "trimmed" else head.vocab_size,
        "tie_word_embeddings": False,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": norms.before_residual,
        "norm_before_fc": norms.before_fc,
        "fc_norm": norms.fc,
        "norm_output": norms.output,
        "num_aux_hidden_states": len(config.capture),
        IDS: [layer + 1 for layer in config.capture],  # as vLLM counts: the layer that reads the state
        "eagle_config": {IDS: list(config.capture), "use_aux_hidden_state": True},
        "torch_dtype": _TORCH_DTYPES[dtype],
    }
    if head.rank:
        values["lm_head_rank"] = head.rank
    if head.kind == "routed":
        values["lm_head_candidates"] = head.size
    if dtype == "q8":
        values["quantization"] = {"bits": 8, "group": GROUP}
    values[OWN] = {CONVENTION: "output", "target": target.to_dict()}
    return values


def _rope_values(rope: RopeConfig) -> dict[str, Any]:
    """rope_theta and rope_scaling, which every version of transformers reads."""
    if rope.type == "default":
        return {"rope_theta": rope.theta, "rope_scaling": None}
    every = asdict(rope)
    fields = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate"),
    }[rope.type]
    scaling = {"rope_type": rope.type, **{name: every[name] for name in fields if every[name] is not None}}
    if rope.original_positions:
        scaling["original_max_position_embeddings"] = rope.original_positions
    return {"rope_theta": rope.theta, "rope_scaling": scaling}
