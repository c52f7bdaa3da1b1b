"""A model file's weights, and a draft's, as directories that the peers read: float32 safetensors and config.json.

transformers needs over half a minute to read a GGUF file itself; this takes seconds, and gives it the very numbers that
the native runtime reads. Kept below slimtier's cache directory.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtier.checkpoint import WEIGHTS
from slimtier.drafters.eagle.load import read_draft
from slimtier.drafters.eagle.open import shipped_draft
from slimtier.drafters.eagle.whole import save_whole
from slimtier.errors import InputError, UnsupportedError
from slimtier.models.aliases import cache_dir
from slimtier.models.config import NativeConfig, RopeConfig
from slimtier.models.native import open_weights
from slimtier.models.resolve import ModelFiles
from slimtier.models.tensors import ModelWeights

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def dense_checkpoint(files: ModelFiles, dropped: Sequence[int] = ()) -> Path:
    """The directory for `files` without the layers `dropped`, written on the first call."""
    cut = f"-without-{'-'.join(map(str, dropped))}" if dropped else ""
    return _written(
        slug(files.name) + cut, files.path, lambda work: write_checkpoint(open_weights(files), work, dropped)
    )


def dense_draft(draft: str, model: str) -> Path:
    """The directory of a draft for vLLM: of a slim one of slimtier's, that with a full head, written on the first call;
    any other one as it is. "auto": the one that is shipped for `model`; InputError where there is none."""
    source = shipped_draft(model) if draft == "auto" else Path(draft).expanduser()
    if source is None:
        raise InputError(f"no draft is shipped for {model}: give draft, the directory of a draft that vLLM reads")
    if read_draft(source).config.head.kind != "slim":
        return source
    weights = source / WEIGHTS
    return _written(f"{source.name}-draft", weights, lambda work: save_whole(source, work, {"made_of": source.name}))


def _written(name: str, source: Path, write: Callable[[Path], None]) -> Path:
    """The directory that `write` made of the file `source`, below the cache directory, once for each state of it."""
    stamp = source.stat()
    place = cache_dir() / "benchmarks" / f"{name}-{stamp.st_size:x}-{stamp.st_mtime_ns:x}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        around = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
        try:
            work = around / "made"
            write(work)
            os.replace(work, place)
        finally:
            shutil.rmtree(around, ignore_errors=True)
    return place


def slug(model: str) -> str:
    """A file name for a model's name: org/name -> org--name, /models/x.gguf -> x.gguf."""
    return Path(model).name if os.path.isabs(model) else model.replace("/", "--")


def write_checkpoint(weights: ModelWeights, directory: Path, dropped: Sequence[int] = ()) -> None:
    """Write config.json and model.safetensors into a new `directory`, the layers that are left numbered anew."""
    from safetensors.numpy import save_file

    directory.mkdir()
    kept = [layer for layer in range(weights.config.num_layers) if layer not in dropped]
    tensors = {}
    for name, tensor in weights.tensors.items():
        renamed = _renumbered(name, kept)
        if renamed is not None:
            tensors[renamed] = _as_transformers_stores(name, tensor.dense(), weights.config)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = transformers_config(weights.config, kept)
    config.eos_token_id = list(weights.eos_token_ids)
    config.save_pretrained(directory)


def _renumbered(name: str, kept: Sequence[int]) -> str | None:
    found = _LAYER.fullmatch(name)
    if found is None:
        return name
    layer = int(found[1])
    return f"model.layers.{kept.index(layer)}.{found[2]}" if layer in kept else None


def _as_transformers_stores(name: str, values: Any, config: NativeConfig) -> Any:
    """Gemma's norms are stored as what is added to 1."""
    gemma_norm = config.post_norms and name.endswith("norm.weight")
    return np.ascontiguousarray(values - np.float32(1) if gemma_norm else values)


def transformers_config(config: NativeConfig, kept: Sequence[int]) -> Any:
    """The transformers config of the layers `kept`. Llama and Gemma 3 only, which the benchmarks' models are."""
    import transformers

    attention = config.attention
    shared: dict[str, Any] = {
        "vocab_size": config.vocab.size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(kept),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.vocab.tied,
    }
    windows = [attention.windows[layer] for layer in kept]
    if config.architecture == "llama" and not any(windows):
        shared |= {"architectures": ["LlamaForCausalLM"], "rope_parameters": _plain_rope(config.rope)}
        return transformers.LlamaConfig(**shared)
    if config.architecture == "gemma3" and config.local_rope is not None:
        return transformers.Gemma3TextConfig(
            **shared,
            architectures=["Gemma3ForCausalLM"],
            query_pre_attn_scalar=round(attention.scale**-2),
            sliding_window=max(windows) or None,
            layer_types=["sliding_attention" if window else "full_attention" for window in windows],
            rope_parameters={
                "full_attention": _plain_rope(config.rope),
                "sliding_attention": _plain_rope(config.local_rope),
            },
        )
    raise UnsupportedError(f"no float32 checkpoint of a {config.architecture} model: name its safetensors directory")


def _plain_rope(rope: RopeConfig) -> dict[str, Any]:
    if rope.type != "default":
        raise UnsupportedError(
            f"no float32 checkpoint of a model with {rope.type} rope: name its safetensors directory"
        )
    return {"rope_type": "default", "rope_theta": rope.theta}
