"""The fields of a draft's config.json: which are read, which change nothing, which must have one value."""

from __future__ import annotations

from typing import Any


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ARCHITECTURES = _words(
    "LlamaForCausalLMEagle3 SlimLlamaForCausalLMEagle3 RoutedLlamaForCausalLMEagle3 Eagle3LlamaForCausalLM "
    "Eagle3DraftModel Eagle3Speculator"
)
NORMS = {  # field -> that of NormConfig
    "norm_before_residual": "before_residual",
    "norm_before_fc": "before_fc",
    "fc_norm": "fc",
    "norm_output": "output",
}
# what the drafter's layer is made of: speculators has it in a block of its own, a changed copy of the target's config
LAYER = _words(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
    "rms_norm_eps rope_theta rope_scaling rope_parameters partial_rotary_factor max_position_embeddings "
    "original_max_position_embeddings vocab_size attention_bias mlp_bias use_sliding_window sliding_window layer_types "
    "model_type"
)
COPIED = _words("architectures tie_word_embeddings")  # in that block the target's, of no meaning for the draft
DRAFT = _words(
    "architectures draft_vocab_size target_hidden_size num_aux_hidden_states eagle_aux_hidden_state_layer_ids "
    "eagle_config tie_word_embeddings lm_head_rank lm_head_rank_divisor lm_head_candidates quantization "
    "transformer_layer_config speculators_model_type slimtier"
)
OWN_FIELDS = ("format", "capture_convention", "target")  # in the block that only slimtier writes
NESTED = ("eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", *NORMS)  # in eagle_config
UNRUN: dict[str, Any] = {  # field -> the only value that changes nothing
    "attention_bias": False,
    "mlp_bias": False,
    "qkv_bias": False,
    "bias": False,
    "use_sliding_window": False,
    "parallel_drafting": False,
    "quantization_config": None,
    "logit_scale": 1.0,
}
HARMLESS = _words(
    "bos_token_id eos_token_id pad_token_id torch_dtype dtype transformers_version use_cache initializer_range "
    "pretraining_tp attention_dropout max_window_layers target_model_type embed_requires_grad speculators_config "
    "speculators_version auto_map has_no_defaults_at_init enable_sp_ulysses is_decoder return_dict_in_generate "
    "_name_or_path"
)
# words in a field's name that tell that it shapes the network
SHAPING = frozenset(
    _words(
        "act activation attn attention aux bias block candidates capture conv embed embedding embeddings expert "
        "experts fc feature features gate head heads hidden k kv layer layers lora mask mlp moe norm norms num "
        "parallel position positions proj q qk qkv quant quantization rank residual rope rotary scale scaling softcap "
        "softcapping states v vocab window"
    )
)
