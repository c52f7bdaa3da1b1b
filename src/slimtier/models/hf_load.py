"""Load a transformers model, and read off it what a target has to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from slimtier.errors import MissingDependencyError, ModelFileError, UnsupportedError

NO_LIMIT = 2**31 - 1  # positions of a model that names no maximum (relative positions, as in T5)


def load_model(path_or_id: str, dtype: torch.dtype) -> Any:
    """The causal LM or encoder-decoder at a hub id, a directory or a .gguf file, its weights in `dtype` on the CPU.

    Raises ModelFileError when it cannot be read or lacks tensors, UnsupportedError when transformers does not know
    it, MissingDependencyError when transformers wants another package for it (accelerate for a .gguf file).
    """
    where, options, weights = path_or_id, {}, {}
    if path_or_id.endswith(".gguf"):
        path = Path(path_or_id)
        if not path.is_file():
            raise ModelFileError(f"no such file: {path}; check the path")
        where, options = str(path.parent), {"gguf_file": path.name}
        if hasattr(transformers, "GgufConfig"):  # newer versions may else compute on the packed codes
            weights = {"quantization_config": transformers.GgufConfig(dequantize=True)}
    try:
        config = AutoConfig.from_pretrained(where, **options)
        family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        loaded: Any = family.from_pretrained(where, dtype=dtype, output_loading_info=True, **options, **weights)
    except ImportError as error:
        raise MissingDependencyError(f"cannot load {path_or_id}: {_first_line(error)}") from error
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"cannot read {path_or_id}: {_first_line(error)}; check the path or id") from error
    except (ValueError, KeyError) as error:
        raise UnsupportedError(f"cannot load {path_or_id}: {_first_line(error)}; choose another model") from error
    except RuntimeError as error:  # what transformers raises for mismatched sizes, after a report on stderr
        raise ModelFileError(
            f"{path_or_id} has tensors of another shape than its config says; download both again"
        ) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelFileError(f"{path_or_id} lacks {len(missing)} tensors ({missing[0]}, ...); download it again")
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def find_decoder(model: Any) -> Any:
    """The part of the model that gives the hidden state its head takes; for an encoder-decoder the decoder."""
    decoder = model.get_decoder()
    if decoder is model:  # a wrapper that names its prefix after something else
        decoder = getattr(model, "model", model)
    if decoder is model or model.get_output_embeddings() is None:
        raise UnsupportedError(f"{type(model).__name__} has no decoder with a head on it; load a causal LM")
    return decoder


def decoder_layers(decoder: nn.Module) -> list[nn.Module]:
    """The decoder's layers: the longest list of modules among the least nested ones."""
    lists = [(name.count("."), -len(m), m) for name, m in decoder.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise UnsupportedError(f"no list of layers found in {type(decoder).__name__}; choose another model")
    return list(min(lists, key=lambda entry: entry[:2])[2])


def max_positions(config: Any) -> int:
    return getattr(config, "max_position_embeddings", None) or NO_LIMIT


def generation_setting(model: Any, name: str) -> Any:
    """What the generation config says, else the model's config, else None."""
    generation = getattr(getattr(model, "generation_config", None), name, None)
    return getattr(model.config, name, None) if generation is None else generation


def eos_token_ids(model: Any) -> tuple[int, ...]:
    found = generation_setting(model, "eos_token_id")
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


def weight_bytes(model: Any, decoder: nn.Module) -> int:
    """Bytes of weights that one decoding step of one token reads: decoder and head, tied weights once, an untied
    embedding table not at all (one row of it), and of a layer's experts those that one token takes."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    used = {p.data_ptr(): (name, p) for name, p in decoder.named_parameters()}
    used.pop(embedding.weight.data_ptr(), None)
    used.update({p.data_ptr(): ("head", p) for p in head.parameters()})
    config = decoder.config
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    share = min(1.0, (getattr(config, "num_experts_per_tok", None) or experts) / experts)
    return int(sum(p.nbytes * (share if ".experts." in name else 1.0) for name, p in used.values()))
