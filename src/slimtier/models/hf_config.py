"""config.json -> NativeConfig, for the transformers classes whose arithmetic native knows.

A key that config.json leaves out has the default of the transformers class; a setting that would change the result in
a way native does not follow is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.config import AttentionConfig, NativeConfig, VocabConfig
from slimtier.models.hf_rope import rope_configs


@dataclass(frozen=True, slots=True)
class Family:
    """What a transformers class fixes and the defaults it fills in."""

    name: str
    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / heads
    gemma: bool = False
    period: int = 0  # every period-th layer sees everything, the others a window; 0: decided otherwise
    softcaps: tuple[float, float] = (0.0, 0.0)  # of attention scores and of logits


FAMILIES = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", num_kv_heads=8),
    "Qwen2ForCausalLM": Family("qwen2", num_kv_heads=32),
    "Qwen3ForCausalLM": Family("qwen3", num_kv_heads=32, head_dim=128),
    "Gemma2ForCausalLM": Family("gemma2", 4, 256, gemma=True, period=2, softcaps=(50.0, 30.0)),
    "Gemma3ForCausalLM": Family("gemma3", 4, 256, gemma=True, period=6),
}
_SILU, _GELU = ("silu", "swish"), ("gelu_pytorch_tanh",)


def hf_config(path: Path, config: Mapping[str, Any]) -> NativeConfig:
    """The NativeConfig of the `config` read from the file `path`.

    Raises UnsupportedError for a class or setting native does not run, ModelFileError for a missing or wrong value.
    """
    keys = ConfigKeys(path, config)
    family = _family(keys)
    _refuse_foreign(keys, family)
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    head_dim = keys.integer("head_dim", family.head_dim or hidden // heads)
    rope, local_rope = rope_configs(keys, family.name)
    return NativeConfig(
        architecture=family.name,
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers"),
        max_positions=keys.integer("max_position_embeddings"),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        activation="gelu_tanh" if family.gemma else "silu",
        post_norms=family.gemma,
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=_kv_heads(keys, family, heads),
            head_dim=head_dim,
            scale=float(keys.number("query_pre_attn_scalar", 256.0) if family.gemma else head_dim) ** -0.5,
            windows=_windows(keys, family),
            qkv_bias=family.name == "qwen2",
            qk_norm=family.name in ("qwen3", "gemma3"),
            softcap=_softcap(keys, "attn_logit_softcapping", family.softcaps[0]),
        ),
        rope=rope,
        vocab=VocabConfig(
            size=keys.integer("vocab_size"),
            tied=bool(keys.get("tie_word_embeddings", family.gemma)),
            embedding_scale=hidden**0.5 if family.gemma else 1.0,
            softcap=_softcap(keys, "final_logit_softcapping", family.softcaps[1]),
        ),
        local_rope=local_rope,
    )


class ConfigKeys:
    """config.json with checked access: `get` for anything, `number` and `integer` for what must be one."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.config = config

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path}: native does not run {what}; try --runtime hf")

    def wrong(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}; fetch or convert the model again")

    def get(self, name: str, default: Any = None) -> Any:
        return self.config.get(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"{name} is {'missing' if value is None else repr(value)}")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value) or value <= 0:
            raise self.wrong(f"{name} is {value}, not a positive whole number")
        return int(value)


def _family(keys: ConfigKeys) -> Family:
    names = keys.get("architectures") or [keys.get("model_type")]
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    raise keys.unsupported(f"the architecture {names[0]} (it runs {', '.join(FAMILIES)})")


def _refuse_foreign(keys: ConfigKeys, family: Family) -> None:
    for name in ("attention_bias", "mlp_bias", "quantization_config", "use_bidirectional_attention"):
        if keys.get(name):
            raise keys.unsupported(f"{family.name} with {name} = {str(keys.get(name))[:80]}")
    name, known = ("hidden_activation", _GELU) if family.gemma else ("hidden_act", _SILU)
    activation = keys.get(name) or known[0]
    if activation not in known:
        raise keys.unsupported(f"{family.name} with {name} = {activation}")
    if family.name == "gemma3" and keys.get("attn_logit_softcapping"):
        raise keys.unsupported("gemma3 with attn_logit_softcapping")


def _kv_heads(keys: ConfigKeys, family: Family, heads: int) -> int:
    absent = family.num_kv_heads if "num_key_value_heads" not in keys.config else None  # null means as many as heads
    kv_heads = keys.integer("num_key_value_heads", absent or heads)
    if heads % kv_heads:
        raise keys.wrong(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    return kv_heads


def _softcap(keys: ConfigKeys, name: str, default: float) -> float:
    """0 = none, which config.json writes as null."""
    return keys.number(name, 0.0) if name in keys.config else default


def _windows(keys: ConfigKeys, family: Family) -> tuple[int, ...]:
    """The window of every layer (0 = none), decided as the transformers class decides it."""
    layers = keys.integer("num_hidden_layers")
    types = keys.get("layer_types")
    if types is not None and (len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}):
        raise keys.unsupported(f"layer_types {sorted(set(map(str, types)))} for {layers} layers")
    window = keys.config.get("sliding_window", 4096)
    if family.name == "llama" or (family.name.startswith("qwen") and not keys.get("use_sliding_window")):
        window = None
    if family.name in ("llama", "mistral"):  # these classes take no notice of layer_types
        local = [window is not None] * layers
    elif types is not None:
        local = [kind == "sliding_attention" for kind in types]
    elif family.period:
        period = keys.integer("sliding_window_pattern", family.period) if family.name == "gemma3" else family.period
        local = [(layer + 1) % period != 0 for layer in range(layers)]
    else:
        first = int(keys.number("max_window_layers", 28))
        local = [window is not None and layer >= first for layer in range(layers)]
    if types is not None and local != [kind == "sliding_attention" for kind in types]:
        raise keys.unsupported(f"{family.name} with windows on some layers")
    if any(local) and (not isinstance(window, int) or window <= 0):
        raise keys.unsupported(f"sliding_attention layers with sliding_window = {window}")
    return tuple(int(window) if here else 0 for here in local)
