"""The rotary embedding of a config.json, in its old form (rope_theta, rope_scaling) and its new (rope_parameters)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slimtier.models.config import RopeConfig

if TYPE_CHECKING:
    from slimtier.models.hf_config import ConfigKeys

_LAYER_KINDS = ("full_attention", "sliding_attention")
_FOREIGN = ("mrope_section", "short_factor", "long_factor")


def rope_configs(keys: ConfigKeys, family: str) -> tuple[RopeConfig, RopeConfig | None]:
    """The rope of the layers that see everything, and (Gemma 3 only) that of the layers with a window."""
    scaling = keys.get("rope_scaling")
    parameters = keys.get("rope_parameters") or {}
    nested = any(isinstance(value, Mapping) for value in parameters.values())
    if family != "gemma3":
        if nested:
            raise keys.unsupported(f"{family} with a rope for each kind of layer")
        return _rope(keys, scaling or parameters, 10000.0), None
    if (parameters and not nested) or set(parameters) - set(_LAYER_KINDS):
        raise keys.unsupported(f"gemma3 with rope_parameters {sorted(parameters)}, not {list(_LAYER_KINDS)}")
    full = {**(parameters.get("full_attention") or {}), **(scaling or {})}
    local = dict(parameters.get("sliding_attention") or {})
    local.setdefault("rope_theta", keys.number("rope_local_base_freq", 10000.0))
    return _rope(keys, full, 1000000.0), _rope(keys, local, 10000.0)


def _rope(keys: ConfigKeys, parameters: Mapping[str, Any], usual_theta: float) -> RopeConfig:
    partial = parameters.get("partial_rotary_factor", keys.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise keys.unsupported(f"rope on a part of each head (partial_rotary_factor {partial})")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    foreign = [name for name in _FOREIGN if parameters.get(name)]
    if foreign:
        raise keys.unsupported(f"rope with {foreign[0]}")
    theta = _number(keys, parameters, "rope_theta", keys.number("rope_theta", usual_theta))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", _number(keys, parameters, "factor"))
    if kind not in ("llama3", "yarn"):
        raise keys.unsupported(f"rope type {kind} (it runs default, linear, llama3 and yarn)")
    positions = keys.integer("max_position_embeddings")
    original = int(
        keys.get("original_max_position_embeddings")
        or _number(keys, parameters, "original_max_position_embeddings", positions)
    )
    if kind == "yarn":
        return _yarn(keys, parameters, theta, original, positions)
    return RopeConfig(
        theta,
        "llama3",
        _number(keys, parameters, "factor"),
        original,
        low_freq_factor=_number(keys, parameters, "low_freq_factor"),
        high_freq_factor=_number(keys, parameters, "high_freq_factor"),
    )


def _yarn(keys: ConfigKeys, parameters: Mapping[str, Any], theta: float, original: int, positions: int) -> RopeConfig:
    factor = _number(keys, parameters, "factor", positions / original)
    attention_factor = parameters.get("attention_factor")
    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if attention_factor is None and mscale and mscale_all_dim:
        attention_factor = _magnitude(factor, mscale) / _magnitude(factor, mscale_all_dim)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        attention_factor=attention_factor,
        truncate=bool(parameters.get("truncate", True)),
    )


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _number(keys: ConfigKeys, parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = parameters.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise keys.wrong(f"the rope's {name} is {'missing' if value is None else repr(value)}")
    return float(value)
