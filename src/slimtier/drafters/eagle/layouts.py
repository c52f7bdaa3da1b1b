"""What public EAGLE-3 checkpoints call their tensors, and what they are called in `EagleNetwork.state_dict`.

| layout | who writes it | the first layer | low-rank head |
| --- | --- | --- | --- |
| eagle | EAGLE, SpecForge, slimtier | midlayer.* (layers.0.* is read too) | lm_head_down [r, d], lm_head [V, r] |
| speculators | speculators | layers.0.* | as eagle, written by slimtier only |
| torchspec | TorchSpec | midlayer.* | lm_head.down [r, d], lm_head.up [V, r] |
"""

from __future__ import annotations

from typing import Literal

from slimtier.drafters.eagle.config import EagleConfig, HeadKind

Layout = Literal["eagle", "speculators", "torchspec"]
Shapes = dict[str, tuple[int, ...]]

EMBEDDING = "embed_tokens.weight"
OFFSETS, MEMBERS = "d2t", "t2d"  # target id - row of the head; whether a token has a row
CODES, SCALES = ".codes", ".scales"  # a quantised matrix is two tensors, called NAME.codes and NAME.scales

# file -> network, the names of a layer without `layers.N.` and all without `.weight`
_LAYER = {
    "input_layernorm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
_HEADS: dict[HeadKind, dict[str, str]] = {
    "full": {"lm_head.weight": "head.weight"},
    "trimmed": {"lm_head.weight": "head.weight"},
    "slim": {"lm_head_down.weight": "head.down", "lm_head.weight": "head.up"},
    "routed": {
        "lm_head_down.weight": "head.router.down",
        "lm_head.weight": "head.router.up",
        "lm_head_full.weight": "head.weight",
    },
}
_TORCHSPEC_HEAD = {"lm_head.down.weight": "lm_head_down.weight", "lm_head.up.weight": "lm_head.weight"}
_FIRST, _MIDDLE = "layers.0.", "midlayer."


def one_spelling(name: str) -> str:
    """A tensor's name in a file, as eagle and speculators would both spell it if they had one name for a layer."""
    bare = name.removeprefix("model.")
    if bare.startswith(_MIDDLE):
        bare = _FIRST + bare.removeprefix(_MIDDLE)
    for suffix in ("", CODES, SCALES):
        plain = bare.removesuffix(suffix)
        if plain in _TORCHSPEC_HEAD and bare == plain + suffix:
            return _TORCHSPEC_HEAD[plain] + suffix
    return bare


def spelt(name: str, layout: Layout) -> str:
    """A name in the one spelling as `layout` has it: what to write, and what to call a tensor that is missing."""
    if layout == "torchspec":
        name = {ours: theirs for theirs, ours in _TORCHSPEC_HEAD.items()}.get(name, name)
    if layout != "speculators" and name.startswith(_FIRST):
        return _MIDDLE + name.removeprefix(_FIRST)
    return name


def network_names(config: EagleConfig) -> dict[str, str]:
    """For every tensor of such a drafter but its embedding and vocabulary: the name in a file (in the one spelling)
    -> the name in the network."""
    names = {"fc.weight": "fc.weight"}
    if config.norms.before_fc:
        names["input_norm.weight"] = "fc_input_norm.weight"
    if config.norms.fc:
        names |= {f"fc_norm.{i}.weight": f"fc_norms.{i}.weight" for i in range(len(config.capture))}
    for layer in range(config.num_layers):
        for theirs, ours in _LAYER.items():
            if layer == 0 or ours != "hidden_norm":  # only the first layer reads a feature
                names[f"layers.{layer}.{theirs}.weight"] = f"layers.{layer}.{ours}.weight"
    return names | {"norm.weight": "norm.weight"} | _HEADS[config.head.kind]


def network_shapes(config: EagleConfig) -> Shapes:
    """Name in the network -> shape, for the same tensors; matrices are [out, in]."""
    hidden, wide = config.hidden_size, config.intermediate_size
    streams = len(config.capture) * config.target_hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {"fc.weight": (hidden, streams), "fc_input_norm.weight": (streams,), "norm.weight": (hidden,)}
    shapes |= {f"fc_norms.{i}.weight": (config.target_hidden_size,) for i in range(len(config.capture))}
    for layer in range(config.num_layers):
        width = hidden if layer else 2 * hidden
        parts: Shapes = {
            "q_proj": (queries, width),
            "k_proj": (keys, width),
            "v_proj": (keys, width),
            "o_proj": (hidden, queries),
            "gate_proj": (wide, hidden),
            "up_proj": (wide, hidden),
            "down_proj": (hidden, wide),
        }
        shapes |= {f"layers.{layer}.{part}.weight": parts.get(part, (hidden,)) for part in _LAYER.values()}
    shapes |= _head_shapes(config)
    return {name: shapes[name] for name in network_names(config).values()}


def _head_shapes(config: EagleConfig) -> Shapes:
    head, hidden = config.head, config.hidden_size
    rows = head.size if head.kind == "trimmed" else head.vocab_size
    down, up = (head.rank, hidden), (head.vocab_size, head.rank)
    shapes: Shapes = {"head.weight": (rows, hidden), "head.down": down, "head.up": up}
    return shapes | {"head.router.down": down, "head.router.up": up}


def vocabulary_rows(kind: HeadKind) -> tuple[str, ...]:
    """The network's tensors that have a row for each token of the head's vocabulary."""
    return tuple(name for name in _HEADS[kind].values() if not name.endswith("down"))
