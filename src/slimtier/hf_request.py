"""What transformers' `generate` asks for, read from what it prepared: rows of tokens, or a refusal by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.configuration_utils import GenerationMode
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from slimtier.errors import ConfigError, InputError
from slimtier.models.hf import HfTarget
from slimtier.models.hf_cache import HfCache, new_row

MEND = "leave it out, or call generate without custom_generate"
OPTIONS_OF = {
    GenerationMode.BEAM_SEARCH: "num_beams",
    GenerationMode.BEAM_SAMPLE: "num_beams",
    GenerationMode.GROUP_BEAM_SEARCH: "num_beam_groups",
    GenerationMode.CONSTRAINED_BEAM_SEARCH: "constraints or force_words_ids",
    GenerationMode.CONTRASTIVE_SEARCH: "penalty_alpha",
    GenerationMode.ASSISTED_GENERATION: "assistant_model, prompt_lookup_num_tokens, assistant_early_exit or use_mtp",
    GenerationMode.DOLA_GENERATION: "dola_layers",
}
STATEFUL = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)
# what generate passes on of its own accord, and the masks that are read here
READ = ("attention_mask", "position_ids", "encoder_outputs", "decoder_attention_mask")
PREPARED = ("cache", "use_cache", "logits_to_keep")


@dataclass(frozen=True, slots=True)
class Prompts:
    """The rows of a batch. `input_ids` [B, L] is as generate has it; row r begins with padding[r] tokens that the
    attention mask hides. For an encoder-decoder `encoded` are the encoder's outputs, [1, input tokens, hidden] each.
    Rows that differ only in what will be drawn stand together, `copies` of each."""

    input_ids: torch.Tensor
    padding: tuple[int, ...]
    encoded: tuple[torch.Tensor, ...] | None
    copies: int

    def tokens(self, row: int) -> list[int]:
        """The row's tokens without its padding."""
        return self.input_ids[row, self.padding[row] :].tolist()

    def begin(self, target: HfTarget, capacity: int) -> HfCache:
        """An empty cache with a row for each prompt (not for each of its copies)."""
        if self.encoded is None:
            return target.begin(len(self.padding) // self.copies, capacity)
        rows = [new_row(target.info.num_layers, states) for states in self.encoded[:: self.copies]]
        return HfCache(rows, capacity)


def refuse(model: Any, config: Any, processors: Any, num_rows: int, dropped: Mapping[str, Any]) -> None:
    """Raises ConfigError or InputError, naming the option, for what speculative decoding cannot give.

    `dropped`: the arguments of generate (assistant_model, synced_gpus) that it does not hand on.
    """
    mode = config.get_generation_mode(dropped.get("assistant_model"))
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(
            f"generate would run {str(mode.value).replace('_', ' ')} (set by {OPTIONS_OF.get(mode, 'its config')}), "
            f"and slimtier runs greedy search and sampling: {MEND}"
        )
    if model.training:
        raise InputError("the model is in training mode, where dropout changes every logit: call model.eval() first")
    if dropped.get("synced_gpus") or _is_sharded(model):
        raise ConfigError(f"synced_gpus: the weights are spread over processes that must step together; {MEND}")
    for processor in processors:
        if isinstance(processor, STATEFUL):
            raise ConfigError(
                f"{type(processor).__name__} keeps state from step to step, which a rejected draft would spoil: {MEND}"
            )
    if config.use_cache is False:
        raise ConfigError("use_cache=False: speculative decoding needs a cache; leave it out")
    implementation = config.cache_implementation or ""
    if "offloaded" in implementation or implementation == "quantized":
        raise ConfigError(f"cache_implementation={implementation!r}: slimtier keeps a cache of its own; {MEND}")
    _refuse_outputs(config, num_rows)


def _is_sharded(model: Any) -> bool:
    return bool(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))  # type: ignore[no-untyped-call]


def _refuse_outputs(config: Any, num_rows: int) -> None:
    if not config.return_dict_in_generate:
        return  # as in generate, nothing of them would be returned
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            raise ConfigError(f"{name} is not available from speculative decoding: {MEND}")
    for name in ("output_scores", "output_logits"):
        if getattr(config, name) and num_rows > 1:
            raise ConfigError(f"{name} is available for one row, and there are {num_rows}: call generate once for each")


def read_prompts(model: Any, input_ids: torch.Tensor, copies: int, model_kwargs: Mapping[str, Any]) -> Prompts:
    """The rows to decode. Raises InputError for inputs that are more than token ids with padding before them."""
    for name, value in model_kwargs.items():
        if value is not None and name not in (*READ, *PREPARED):
            raise InputError(f"generate was given {name}, and slimtier decodes from token ids alone: {MEND}")
    if getattr(model_kwargs.get("cache"), "_is_user_defined", False):
        raise InputError(f"generate was given a cache, and slimtier keeps a cache of its own: {MEND}")
    if not input_ids.shape[1]:
        raise InputError("the prompt is empty: give at least one token")
    mask = model_kwargs.get("attention_mask")
    if model.config.is_encoder_decoder:
        decoder_mask = model_kwargs.get("decoder_attention_mask")
        if decoder_mask is not None and not bool(decoder_mask.all()):
            raise InputError("decoder_attention_mask hides tokens: give decoder_input_ids without padding")
        encoded = _encoder_states(model_kwargs["encoder_outputs"].last_hidden_state, mask)
        return Prompts(input_ids, (0,) * len(input_ids), encoded, copies)
    padding = _padding(input_ids, mask)
    _check_positions(model_kwargs.get("position_ids"), padding, input_ids.shape[1])
    return Prompts(input_ids, padding, None, copies)


def _encoder_states(states: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Each row of states [B, S, hidden] as [1, input tokens, hidden], the padding after them cut off."""
    if mask is None or bool(mask.all()):
        return tuple(row[None] for row in states)
    lengths = (mask != 0).sum(-1).tolist() if mask.shape == states.shape[:2] else []
    if not all(bool(row[:length].all()) and length for row, length in zip(mask, lengths, strict=False)) or not lengths:
        raise InputError(
            "attention_mask of the encoder hides more than padding at the end: pad the inputs on the right"
        )
    return tuple(row[None, :length] for row, length in zip(states, lengths, strict=True))


def _padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[int, ...]:
    """How many tokens of each row [B, L] the mask hides; they must be its first ones."""
    if mask is None:
        return (0,) * len(input_ids)
    if mask.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(input_ids.shape)}: give one of the same"
        )
    shown = mask != 0
    padding = tuple(shown.int().argmax(-1).tolist())
    for row, hidden in enumerate(padding):
        if not bool(shown[row, hidden:].all()):
            raise InputError(
                f"attention_mask of row {row} hides tokens after the first visible one: pad the prompts on the left"
            )
    return padding


def _check_positions(position_ids: torch.Tensor | None, padding: tuple[int, ...], length: int) -> None:
    """Raises InputError unless each row's positions count its visible tokens from 0."""
    if position_ids is None:
        return
    for row, hidden in enumerate(padding):
        own = position_ids[row % len(position_ids), ..., hidden:]
        if not torch.equal(own, torch.arange(length - hidden, device=own.device)):
            raise InputError(f"position_ids of row {row} do not count its tokens from 0, as slimtier does: {MEND}")
