"""Public draft checkpoints, spelt out by hand: each is read, and computes what its own program would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.layouts import network_names, network_shapes, one_spelling, spelt
from slimtier.drafters.eagle.load import DraftFiles, load_network
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.config import RopeConfig
from tests.drafters.eagle.draft_files import (
    EAGLE,
    HIDDEN,
    TARGET_HIDDEN,
    VOCAB,
    State,
    causal,
    full_state,
    prefix,
    public_logits,
    random_matrix,
    random_state,
    read_config,
    speculators,
)
from tests.models.ropes import LLAMA3, YARN

EMBEDDING = random_matrix(VOCAB, HIDDEN, seed=2)
TOKENS = torch.randint(0, VOCAB, (9,), generator=torch.Generator().manual_seed(3))
FEATURES = random_matrix(9, 3 * TARGET_HIDDEN, seed=4)
RANK = 4


def run(files: DraftFiles, embedding: torch.Tensor = EMBEDDING) -> tuple[torch.Tensor, torch.Tensor]:
    """What the loaded network's head takes, and what is fed back."""
    network = load_network(files, embedding, 64)
    with torch.no_grad():
        out: tuple[torch.Tensor, torch.Tensor] = network(TOKENS, network.fuse(FEATURES), torch.arange(9), causal)
    return out


def logits(files: DraftFiles) -> torch.Tensor:
    network = load_network(files, EMBEDDING, 64)
    with torch.no_grad():
        found: torch.Tensor = network.head.logits(run(files)[0])
    return found


NORMS: list[dict[str, bool]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
]


@pytest.mark.parametrize("norms", NORMS, ids=lambda norms: "+".join(norms) or "none")
@pytest.mark.parametrize("layout", ["eagle", "eagle-nested", "speculators"])
def test_the_norms_of_each_layout(tmp_path: Path, layout: str, norms: dict[str, bool]) -> None:
    state = full_state(prefix(layout))
    if norms.get("norm_before_fc"):
        state["input_norm.weight"] = 1 + random_matrix(3 * TARGET_HIDDEN, seed=5)
    if norms.get("fc_norm"):
        state |= {f"fc_norm.{i}.weight": 1 + random_matrix(TARGET_HIDDEN, seed=6 + i) for i in range(3)}
    config = speculators(**norms) if layout == "speculators" else EAGLE | norms
    if layout == "eagle-nested":
        config = EAGLE | {"eagle_config": {**EAGLE["eagle_config"], **norms}}
    files = read_config(tmp_path, config, state)
    assert files.layout == layout.removesuffix("-nested")
    assert files.config.capture == (1, 3, 4)
    for found, wanted in zip(
        run(files), public_logits(state, EMBEDDING, TOKENS, FEATURES, prefix=prefix(layout), **norms), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_two_layers(tmp_path: Path, layout: str) -> None:
    state = random_state(prefix(layout), layers=2) | {"lm_head.weight": random_matrix(VOCAB, HIDDEN)}
    config = EAGLE | {"num_hidden_layers": 2}
    if layout == "speculators":
        config = speculators()
        config["transformer_layer_config"]["num_hidden_layers"] = 2
    wanted = public_logits(state, EMBEDDING, TOKENS, FEATURES, prefix=prefix(layout), layers=2)[0]
    torch.testing.assert_close(run(read_config(tmp_path, config, state))[0], wanted, rtol=1e-4, atol=1e-5)


def head_cases() -> dict[str, tuple[dict[str, Any], State, HeadConfig]]:
    """Layout and head -> config fields, the head's tensors, and what is read."""
    down, up = random_matrix(RANK, HIDDEN, seed=20), random_matrix(VOCAB, RANK, seed=21)
    slim, full = {"lm_head_down.weight": down, "lm_head.weight": up}, random_matrix(VOCAB, HIDDEN)
    ids = torch.tensor([0, 2, 3, 9, 11, 30, VOCAB - 1])
    trimmed = {"lm_head.weight": full[ids], "d2t": ids - torch.arange(7), "t2d": torch.isin(torch.arange(VOCAB), ids)}
    ours, fields = {"architectures": ["SlimLlamaForCausalLMEagle3"]}, {"lm_head_rank": RANK}
    return {
        "full": ({}, {"lm_head.weight": full}, HeadConfig("full", VOCAB)),
        "slim": (ours | fields, slim, HeadConfig("slim", VOCAB, RANK)),
        "torchspec": (
            {"lm_head_rank_divisor": HIDDEN // RANK},
            {"lm_head.down.weight": down, "lm_head.up.weight": up},
            HeadConfig("slim", VOCAB, RANK),
        ),
        "routed": (
            fields | {"lm_head_candidates": 6},
            slim | {"lm_head_full.weight": full},
            HeadConfig("routed", VOCAB, RANK, 6),
        ),
        "trimmed": ({"draft_vocab_size": 7}, trimmed, HeadConfig("trimmed", VOCAB, size=7)),
    }


@pytest.mark.parametrize("case", head_cases())
def test_heads(tmp_path: Path, case: str) -> None:
    fields, tensors, wanted = head_cases()[case]
    body = random_state()
    files = read_config(tmp_path, EAGLE | fields, body | tensors)
    assert files.config.head == wanted
    assert files.layout == ("torchspec" if case == "torchspec" else "eagle")
    hidden = public_logits(body, EMBEDDING, TOKENS, FEATURES)[0]
    parts = [tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")]
    if case == "full":
        expected = hidden @ parts[0].T
    elif case in ("slim", "torchspec"):
        expected = hidden @ parts[0].T @ parts[1].T
    elif case == "trimmed":
        expected = torch.full((9, VOCAB), -torch.inf)
        expected[:, torch.arange(7) + tensors["d2t"]] = hidden @ parts[0].T
    else:
        chosen = (hidden @ parts[0].T @ parts[1].T).topk(6).indices
        expected = torch.full((9, VOCAB), -torch.inf).scatter(1, chosen, (hidden @ parts[2].T).gather(1, chosen))
    torch.testing.assert_close(logits(files), expected, rtol=1e-4, atol=1e-5)


def rows(ids: list[int], *, absolute: bool = False, members: list[int] | None = None) -> State:
    """A head whose row j speaks of token ids[j]: the row is that token's row of one full head."""
    named = torch.tensor(ids)
    state = {"lm_head.weight": random_matrix(VOCAB, HIDDEN)[named.clamp(0, VOCAB - 1)]}
    state["d2t"] = named if absolute else named - torch.arange(len(ids))
    if members is not None:
        state["t2d"] = torch.isin(torch.arange(VOCAB), torch.tensor(members))
    return state


@pytest.mark.parametrize("ids", [[5, 2, 40, 0, 47], [47, 46, 45], [0]])
def test_a_mapping_in_any_order(tmp_path: Path, ids: list[int]) -> None:
    """The rows are put into the order of their tokens, with their rows of weights (B21)."""
    files = read_config(tmp_path, EAGLE | {"draft_vocab_size": len(ids)}, random_state() | rows(ids, members=ids))
    assert files.ids is not None
    assert files.ids.tolist() == sorted(ids)
    full = read_config(tmp_path / "full", EAGLE, random_state() | {"lm_head.weight": random_matrix(VOCAB, HIDDEN)})
    found, wanted = logits(files), logits(full)
    torch.testing.assert_close(found[:, ids], wanted[:, ids])
    others = [token for token in range(VOCAB) if token not in ids]
    assert (found[:, others] == -torch.inf).all()


def test_as_many_rows_as_tokens_in_another_order(tmp_path: Path) -> None:
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(8)).tolist()
    files = read_config(tmp_path, EAGLE, random_state() | rows(ids))
    assert files.config.head.kind == "full"
    assert files.ids is None
    full = read_config(tmp_path / "full", EAGLE, random_state() | {"lm_head.weight": random_matrix(VOCAB, HIDDEN)})
    torch.testing.assert_close(logits(files), logits(full))


@pytest.mark.parametrize(
    ("ids", "options", "words"),
    [
        ([1, 2, 2], {}, "d2t leads to a token twice"),
        ([1, 2, VOCAB], {}, f"d2t leads outside the target's {VOCAB} tokens"),
        ([-1, 2, 3], {}, "d2t leads outside"),
        ([1, 2, 3], {"members": [1, 2, 4]}, "d2t and t2d name different tokens"),
        ([10, 20, 46], {"absolute": True, "members": [10, 20, 46]}, r"\(as ids instead of offsets it would fit\)"),
    ],
)
def test_a_bad_mapping(tmp_path: Path, ids: list[int], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_config(tmp_path, EAGLE | {"draft_vocab_size": 3}, random_state() | rows(ids, **options))


def test_a_missing_mapping(tmp_path: Path) -> None:
    state = random_state() | rows([1, 2, 3])
    del state["d2t"]
    with pytest.raises(ModelFileError, match="lacks tensor d2t"):
        read_config(tmp_path, EAGLE | {"draft_vocab_size": 3}, state)
    longer = rows([1, 2, 3]) | {"t2d": torch.isin(torch.arange(VOCAB + 1), torch.tensor([1, 2, 3]))}
    with pytest.raises(ModelFileError, match=r"t2d has shape \[49\], its config asks for \[48\]"):
        read_config(tmp_path / "longer", EAGLE | {"draft_vocab_size": 3}, random_state() | longer)
    with pytest.raises(ModelFileError, match="d2t has the wrong kind of numbers"):
        read_config(tmp_path / "floats", EAGLE | {"draft_vocab_size": 3}, state | {"d2t": torch.zeros(3)})


@pytest.mark.parametrize(
    ("flat", "nested", "wanted"),
    [
        ({"rope_theta": 1e6}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, RopeConfig(1e6)),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            RopeConfig(5e5, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0),
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": YARN},
            {"rope_parameters": YARN | {"rope_theta": 1e4}},
            RopeConfig(1e4, "yarn", 4.0, 64),
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            RopeConfig(1e4, "linear", 2.0),
        ),
    ],
)
@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_rope_of_either_form(tmp_path: Path, layout: str, flat: Any, nested: Any, wanted: RopeConfig) -> None:
    """The draft's own, in transformers' old form and its new, and in both at once (B32)."""
    state = full_state(prefix(layout))
    for index, fields in enumerate((flat, nested, flat | nested)):
        config = speculators() if layout == "speculators" else dict(EAGLE)
        place = config["transformer_layer_config"] if layout == "speculators" else config
        del place["rope_theta"]
        place.update(fields)
        assert read_config(tmp_path / str(index), config, state).config.rope == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_scaling": YARN, "rope_parameters": YARN | {"factor": 8.0}},
    ],
)
def test_a_rope_said_twice(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"in rope_parameters and .* beside it"):
        read_config(tmp_path, EAGLE | fields)


def test_the_ropes_of_two_drafts_do_not_meet(tmp_path: Path) -> None:
    """One theta is not another's, whichever was loaded first (B32)."""
    state = full_state()
    found = []
    for theta in (1e4, 1e6, 1e4):
        found.append(run(read_config(tmp_path / str(theta), EAGLE | {"rope_theta": theta}, state))[0])
        wanted = public_logits(state, EMBEDDING, TOKENS, FEATURES, theta=theta)[0]
        torch.testing.assert_close(found[-1], wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def in_layer(**fields: Any) -> dict[str, Any]:
    config = speculators()
    return config | {"transformer_layer_config": config["transformer_layer_config"] | fields}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EAGLE | {"norm_before_head": True}, "norm_before_head = True may change what the draft computes"),
        (EAGLE | {"norm_befor_residual": True}, "did you mean 'norm_before_residual'"),
        (EAGLE | {"eagle_config": {**EAGLE["eagle_config"], "fc_norms": True}}, r"eagle_config\.fc_norms = True"),
        (in_layer(qk_norm=True), r"transformer_layer_config\.qk_norm = True"),
        (speculators(num_experts=4), "num_experts = 4"),
        (EAGLE | {"norm_before_residual": "yes"}, "norm_before_residual is 'yes', not true or false"),
        (EAGLE | {"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        (EAGLE | {"norm_output": True, "eagle_config": {"norm_output": False}}, "contradict each other"),
        (EAGLE | {"hidden_size": None}, "hidden_size is missing"),
        (EAGLE | {"num_key_value_heads": 3}, "do not go together"),
        (EAGLE | {"draft_vocab_size": VOCAB + 1}, "is more than the target's vocab_size"),
        (EAGLE | {"lm_head_rank": 4, "lm_head_rank_divisor": 2}, "lm_head_rank_divisor makes it 16"),
        (EAGLE | {"lm_head_candidates": 4}, "needs lm_head_rank"),
        (EAGLE | {"architectures": ["SlimLlamaForCausalLMEagle3"]}, "lm_head_rank is missing"),
        (speculators(transformer_layer_config=None), "transformer_layer_config is missing"),
        (EAGLE | {"eagle_config": [1, 3, 4]}, "not an object"),
    ],
)
def test_fields_that_are_wrong(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    """A field that could shape the network is never passed over (B33)."""
    with pytest.raises(ModelFileError, match=words):
        read_config(tmp_path, config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EAGLE | {"attention_bias": True}, "attention_bias = True"),
        (in_layer(mlp_bias=True), r"transformer_layer_config\.mlp_bias = True"),
        (in_layer(model_type="qwen3"), "layers of model_type qwen3"),
        (in_layer(layer_types=["sliding_attention"], sliding_window=2048), "a sliding window of 2048 tokens"),
        (EAGLE | {"hidden_act": "gelu"}, "hidden_act gelu"),
        (EAGLE | {"logit_scale": 0.5}, "logit_scale = 0.5"),
        (EAGLE | {"parallel_drafting": True}, "parallel_drafting"),
        (EAGLE | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (EAGLE | {"quantization": {"bits": 4, "group": 32}}, "only 8 bits in groups of 32"),
        (EAGLE | {"partial_rotary_factor": 0.5}, "rope on a part of each head"),
        (EAGLE | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
        (EAGLE | {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = false"),
        (EAGLE | {"lm_head_rank": 4, "draft_vocab_size": 10}, "a low-rank head over 10 of 48 tokens"),
        (EAGLE | {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM is no EAGLE-3 draft"),
        (speculators(speculators_model_type="dflash"), "a speculator of type dflash, only eagle3"),
    ],
)
def test_what_is_not_run(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        read_config(tmp_path, config)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"colour": "red"}, "colour is not known and was not used"),
        ({"new_norm": False}, "new_norm is not known and was not used"),
        ({"sliding_window": 512, "use_sliding_window": False}, "sliding_window was not used"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings was not used, since the file has a head of its own"),
    ],
)
def test_what_changes_nothing_is_noted(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    files = read_config(tmp_path, EAGLE | fields)
    assert [said in note for note in files.notes] == [True]


def test_an_unsaid_norm_of_speculators_is_noted(tmp_path: Path) -> None:
    """Its trainer's default is not its config's."""
    config = speculators()
    del config["norm_before_residual"]
    files = read_config(tmp_path, config, full_state("layers.0."))
    assert not files.config.norms.before_residual
    assert files.notes == ("config.json says nothing of norm_before_residual: false was taken",)


def test_names_and_shapes_are_the_networks() -> None:
    """The table holds exactly what the network holds, for every head and every norm."""
    for head in (case[2] for case in head_cases().values()):
        for norms in (NormConfig(), NormConfig(before_fc=True), NormConfig(fc=True)):
            config = EagleConfig(32, 40, 2, 4, 2, 8, 24, (1, 3, 4), 1e-5, RopeConfig(), head, norms)
            state = EagleNetwork(config, torch.zeros(VOCAB, 32), 16).state_dict()
            shapes = {name: tuple(tensor.shape) for name, tensor in state.items() if name != "head.ids"}
            assert network_shapes(config) == shapes
            assert sorted(network_names(config).values()) == sorted(shapes)


@pytest.mark.parametrize(
    ("name", "one", "eagle", "torchspec"),
    [
        ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight", ""),
        ("model.layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight", ""),
        ("layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight", ""),
        ("lm_head.up.weight.codes", "lm_head.weight.codes", "lm_head.weight.codes", "lm_head.weight.codes"),
        ("lm_head.down.weight", "lm_head_down.weight", "lm_head_down.weight", "lm_head.down.weight"),
    ],
)
def test_spellings(name: str, one: str, eagle: str, torchspec: str) -> None:
    assert one_spelling(name) == one
    assert spelt(one, "eagle") == eagle
    assert spelt(one, "speculators") == one
    assert spelt(one, "torchspec") == (torchspec or eagle)
