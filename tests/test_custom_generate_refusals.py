"""What `custom_generate` refuses, by name and before the model runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import (
    SynthIDTextWatermarkingConfig,
)

import slimtier
from slimtier.errors import ConfigError, InputError
from tests.generating import batch, model_of, speculation
from tests.models.hf_models import CONFIGS, build


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafter": "ngrm"}, "did you mean 'ngram'"),
        ({"verifier": "lenient"}, "needs the setting lenience"),
        ({"drafter": "draft_model"}, "needs the setting draft_model"),
        ({"drafter": "draft_model", "draft_model": 5}, "draft_model is 5"),
        ({"min_ngrm": 2}, "did you mean 'min_ngram'"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
    ],
)
def test_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slimtier.custom_generate(**settings)


def mask(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "beam search .set by num_beams"),
        ({"num_beams": 2, "do_sample": True}, "beam sample .set by num_beams"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"assistant_model": "itself"}, "assistant_model"),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
        (
            {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=2), "do_sample": True},
            "SynthID",
        ),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
        ({"cache": transformers.DynamicCache()}, "was given a cache"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states"),
        ({"return_dict_in_generate": True, "output_scores": True}, "one row, and there are 2"),
        ({"return_dict_in_generate": True, "output_logits": True}, "one row, and there are 2"),
        ({"max_new_tokens": 61}, "5 tokens and may grow by 61, and the model holds 64: .* at most 60"),
        ({"attention_mask": mask([1] * 5, [1, 0, 1, 1, 1])}, "attention_mask of row 1"),
        ({"attention_mask": mask([1] * 5, [1, 1, 1, 0, 0])}, "attention_mask of row 1"),
        ({"attention_mask": mask([1] * 5, [0] * 5)}, "attention_mask of row 1"),
        ({"position_ids": torch.tensor([[3, 4, 5, 6, 7]] * 2)}, "position_ids of row 0"),
        ({"inputs_embeds": torch.zeros(2, 5, 32)}, "inputs_embeds"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    model, calls = model_of("llama"), []
    given = {name: model if value == "itself" else value for name, value in options.items()}
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises((ConfigError, InputError), match=message) as caught:
            model.generate(
                **{"input_ids": torch.full((2, 5), 9), "max_new_tokens": 4, **given},
                custom_generate=slimtier.custom_generate(drafter="ngram"),
            )
        assert "\n" not in str(caught.value)
        assert len(calls) <= 10  # nothing but the check of the wrapped model
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": mask([1] * 5, [0, 1, 1, 1, 1])}, "attention_mask of the encoder"),
        ({"decoder_input_ids": mask([0, 5], [0, 5]), "decoder_attention_mask": mask([1, 1], [0, 1])}, "decoder_attent"),
    ],
)
def test_an_encoder_decoder_refuses_masks_it_cannot_cut(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_of("t5").generate(
            torch.full((2, 5), 9), max_new_tokens=4, custom_generate=speculation("ngram"), **options
        )


def test_drafters_of_a_decoder_are_refused_for_an_encoder_decoder() -> None:
    for settings in ({"drafter": "layer_skip", "skip_layers": 1}, {"drafter": "draft_model", "draft_model": "x"}):
        speculate = slimtier.custom_generate(**settings)
        with pytest.raises(ConfigError, match="encoder-decoder"):
            model_of("t5").generate(torch.full((1, 5), 9), max_new_tokens=4, custom_generate=speculate)


def test_a_model_in_training_mode_is_refused_and_left_so() -> None:
    model, speculate = build(CONFIGS["llama"]()).train(), slimtier.custom_generate(drafter="ngram")
    with pytest.raises(InputError, match=r"call model\.eval"):
        model.generate(**batch("llama"), max_new_tokens=4, custom_generate=speculate)
    assert model.training
    draft = slimtier.custom_generate(drafter="draft_model", draft_model=model)
    with pytest.raises(InputError, match=r"call draft_model\.eval"):
        model_of("llama").generate(**batch("llama"), max_new_tokens=4, custom_generate=draft)
