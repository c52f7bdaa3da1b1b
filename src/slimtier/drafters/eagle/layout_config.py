"""config.json of an EAGLE-3 draft, in any of the public layouts -> EagleConfig.

A field that would change the drafter's arithmetic and is not known, or says what slimtier does not run, is an error;
one that changes nothing is noted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtier.checkpoint import FORMAT, OWN
from slimtier.config import refuse_unknown
from slimtier.drafters.eagle import config_fields as known
from slimtier.drafters.eagle.capture_ids import read_capture
from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.draft_keys import DraftKeys
from slimtier.drafters.eagle.layouts import Layout
from slimtier.errors import ConfigError, UnsupportedError
from slimtier.models.config import RopeConfig
from slimtier.models.hf_rope import rope_configs


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """What config.json says. `draft_vocab_size`: rows of the head; `borrows`: whose head it uses if it has none of its
    own (None: nobody's); `max_positions`: the longest text it was made for."""

    layout: Layout
    config: EagleConfig
    draft_vocab_size: int
    borrows: str | None
    max_positions: int
    quantised: bool
    notes: tuple[str, ...]


def read_config(path: Path, values: Mapping[str, Any], target_layers: int | None = None) -> ReadConfig:
    """What the `values` of the config.json `path` say of the draft. `target_layers`: how many the target has, to check
    the ids of captured layers and to guess those that the file leaves out.

    Raises ModelFileError for what is missing, wrong or contradictory, UnsupportedError for what is not run.
    """
    layout = _layout(path, values)
    notes: list[str] = []
    keys = DraftKeys(path, _flat(DraftKeys(path, values), layout, notes))
    _refuse_foreign(keys, notes)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    kv_heads = keys.integer("num_key_value_heads", heads)
    head_dim = keys.integer("head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise keys.wrong(f"{heads} heads, {kv_heads} for keys and values, of {head_dim} do not go together")
    vocab = keys.integer("vocab_size")
    rows = keys.integer("draft_vocab_size", vocab)
    config = EagleConfig(
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers", 1),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        target_hidden_size=keys.integer("target_hidden_size", hidden),
        capture=read_capture(keys, layout, target_layers, notes),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=_rope(keys),
        head=_head(keys, hidden, vocab, rows),
        norms=_norms(keys, layout, notes),
    )
    return ReadConfig(
        layout,
        config,
        rows,
        _borrows(keys, config, rows, vocab),
        keys.integer("max_position_embeddings", 2048),
        _quantised(keys),
        tuple(notes),
    )


def _layout(path: Path, values: Mapping[str, Any]) -> Layout:
    kind = values.get("speculators_model_type")
    if kind is not None and kind != "eagle3":
        raise UnsupportedError(f"{path}: slimtier does not run a speculator of type {kind}, only eagle3")
    names = values.get("architectures") or []
    if kind is None and not any(name in known.ARCHITECTURES for name in names):
        raise UnsupportedError(
            f"{path}: {', '.join(map(str, names)) or 'no architecture'} is no EAGLE-3 draft (one of "
            f"{', '.join(known.ARCHITECTURES)}); name a draft's directory, not a model's"
        )
    if kind is not None:
        return "speculators"
    return "torchspec" if values.get("lm_head_rank_divisor") else "eagle"


def _flat(keys: DraftKeys, layout: Layout, notes: list[str]) -> dict[str, Any]:
    """All fields on one level; each is judged where it stands."""
    layer: Mapping[str, Any] = {}
    own = known.LAYER
    if layout == "speculators":
        layer = keys.block("transformer_layer_config")
        if not layer:
            raise keys.wrong("transformer_layer_config is missing")
        own = ("model_type",)
    _judge(keys, "", keys.config, {*own, *known.DRAFT, *known.NORMS, *known.UNRUN}, notes)
    _judge(keys, "transformer_layer_config.", layer, {*known.LAYER, *known.UNRUN, *known.COPIED}, notes)
    eagle = keys.block("eagle_config")
    _judge(keys, "eagle_config.", eagle, set(known.NESTED), notes)
    _judge(keys, f"{OWN}.", keys.block(OWN), set(known.OWN_FIELDS), notes)
    flat = {**keys.config, **{name: value for name, value in layer.items() if name in (*known.LAYER, *known.UNRUN)}}
    for name in known.NORMS:
        if name in eagle and flat.setdefault(name, eagle[name]) != eagle[name]:
            raise keys.wrong(f"{name} is {flat[name]} and {eagle[name]} in eagle_config: they contradict each other")
    return flat


def _judge(keys: DraftKeys, place: str, fields: Mapping[str, Any], read: set[str], notes: list[str]) -> None:
    for name, value in fields.items():
        if name in known.UNRUN and value not in (None, known.UNRUN[name]):
            raise keys.unsupported(f"{place}{name} = {str(value)[:80]}")
        if name in read or name in known.HARMLESS:
            continue
        on = value not in (None, False, 0, "", [], {})
        if on and known.SHAPING & set(re.split(r"[_\W]+", name.lower())):
            try:
                refuse_unknown([name], sorted(read), "field")
            except ConfigError as error:
                raise keys.wrong(
                    f"{place}{name} = {str(value)[:60]} may change what the draft computes: {error}"
                ) from None
        notes.append(f"config.json: {place}{name} is not known and was not used")


def _refuse_foreign(keys: DraftKeys, notes: list[str]) -> None:
    """What takes more than one field to tell that it is not run."""
    if keys.get("model_type", "llama") not in ("llama", "speculators"):
        raise keys.unsupported(f"layers of model_type {keys.get('model_type')} (it runs llama's)")
    if keys.get("hidden_act", "silu") not in ("silu", "swish"):
        raise keys.unsupported(f"hidden_act {keys.get('hidden_act')}")
    if "sliding_attention" in (keys.get("layer_types") or ()):
        raise keys.unsupported(f"a sliding window of {keys.get('sliding_window')} tokens")
    if keys.block("eagle_config").get("use_aux_hidden_state") is False:
        raise keys.unsupported("use_aux_hidden_state = false (it reads the target's last layer only)")
    if keys.get("sliding_window") and "layer_types" not in keys.config:
        notes.append("config.json: sliding_window was not used, since no layer is said to have one")
    own = keys.block(OWN)
    if own.get("format", FORMAT) != FORMAT:
        raise keys.unsupported(f"{OWN}.format {own['format']}, which a later slimtier wrote")


def _norms(keys: DraftKeys, layout: Layout, notes: list[str]) -> NormConfig:
    if layout == "speculators" and "norm_before_residual" not in keys.config:
        notes.append("config.json says nothing of norm_before_residual: false was taken")
    norms = NormConfig(**{ours: keys.truth(theirs) for theirs, ours in known.NORMS.items()})
    if norms.before_fc and norms.fc:
        raise keys.wrong("norm_before_fc and fc_norm are both true, and exclude each other")
    return norms


def _rope(keys: DraftKeys) -> RopeConfig:
    """The draft's own rope: it need not be the target's. Said twice (flat and nested), both must be the same."""
    nested, flat = keys.block("rope_parameters"), keys.block("rope_scaling")
    beside = {"rope_theta": keys.get("rope_theta"), **flat, "rope_type": flat.get("rope_type", flat.get("type"))}
    for name, value in nested.items():
        if beside.get(name) not in (None, value):
            raise keys.wrong(f"{name} is {value} in rope_parameters and {beside[name]} beside it")
    both = {**flat, **nested}
    merged = {key: value for key, value in keys.config.items() if key not in ("rope_scaling", "rope_parameters")}
    rope, _ = rope_configs(DraftKeys(keys.path, {**merged, "rope_parameters": both}), "llama")
    return rope


def _head(keys: DraftKeys, hidden: int, vocab: int, rows: int) -> HeadConfig:
    rank = keys.integer("lm_head_rank") if keys.get("lm_head_rank") is not None else 0
    if keys.get("lm_head_rank_divisor"):
        by_divisor = hidden // keys.integer("lm_head_rank_divisor")
        if rank not in (0, by_divisor):
            raise keys.wrong(f"lm_head_rank is {rank} and lm_head_rank_divisor makes it {by_divisor}")
        rank = by_divisor
    candidates = keys.integer("lm_head_candidates") if keys.get("lm_head_candidates") is not None else 0
    if any(name.startswith(("Slim", "Routed")) for name in keys.get("architectures") or []) and not rank:
        raise keys.wrong("lm_head_rank is missing")
    if candidates and not rank:
        raise keys.wrong("lm_head_candidates needs lm_head_rank, the rank of what picks them")
    if rows > vocab:
        raise keys.wrong(f"draft_vocab_size {rows} is more than the target's vocab_size {vocab}")
    if not rank:
        return HeadConfig("trimmed", vocab, size=rows) if rows < vocab else HeadConfig("full", vocab)
    if rows < vocab:
        raise keys.unsupported(f"a low-rank head over {rows} of {vocab} tokens")
    return HeadConfig("routed", vocab, rank, min(candidates, vocab)) if candidates else HeadConfig("slim", vocab, rank)


def _borrows(keys: DraftKeys, config: EagleConfig, rows: int, vocab: int) -> str | None:
    """Whose matrix a draft without a head of its own takes: only where its config says so and the shapes are equal.
    draft_vocab_size null is SGLang's way to say "the target's head"; tied is the embedding."""
    if config.head.kind != "full" or rows != vocab:
        return None
    if keys.truth("tie_word_embeddings"):
        return "embedding"
    return "target" if "draft_vocab_size" in keys.config and keys.get("draft_vocab_size") is None else None


def _quantised(keys: DraftKeys) -> bool:
    block = keys.block("quantization")
    if block and dict(block) != {"bits": 8, "group": 32}:
        raise keys.unsupported(f"quantization {dict(block)} (only 8 bits in groups of 32)")
    return bool(block)
