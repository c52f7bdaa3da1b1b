"""Drafts saved and opened again: the same bits, nothing missing, nothing random, nothing shared by mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slimtier.checkpoint import write_checkpoint
from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.load import DraftFiles, load_network, own_embedding, read_draft
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.save import StoredAs, save_draft
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.errors import ConfigError, ModelError, ModelFileError, NonFiniteError
from slimtier.kernels import core, pool
from slimtier.models.config import RopeConfig
from slimtier.models.precision import kernel_matrix
from tests.drafters.eagle.draft_files import (
    EAGLE,
    HIDDEN,
    VOCAB,
    State,
    causal,
    full_state,
    random_matrix,
    random_state,
    write_draft,
)

EMBEDDING = random_matrix(VOCAB, HIDDEN, seed=2)
RECORD = TargetRecord("a-target", 8, 24, VOCAB, 512, "ab", None)
HEADS = {
    "full": HeadConfig("full", VOCAB),
    "slim": HeadConfig("slim", VOCAB, 9),
    "trimmed": HeadConfig("trimmed", VOCAB, size=11),
    "routed": HeadConfig("routed", VOCAB, 5, 8),
}
ROPES = {
    "default": RopeConfig(500000.0),
    "linear": RopeConfig(1e4, "linear", 2.0),
    "llama3": RopeConfig(5e5, "llama3", 8.0, 64, 1.5, 3.5),
    "yarn": RopeConfig(1e4, "yarn", 4.0, 64, beta_fast=16.0, attention_factor=1.25, truncate=False),
}


def config_of(head: str = "slim", **more: Any) -> EagleConfig:
    plain = EagleConfig(HIDDEN, 40, 1, 4, 2, 8, 24, (1, 3, 6), 1e-5, ROPES["default"], HEADS[head])
    return replace(plain, **more)


def network_of(config: EagleConfig, seed: int = 0) -> EagleNetwork:
    torch.manual_seed(seed)
    network = EagleNetwork(config, EMBEDDING, 64).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if config.head.kind == "trimmed":
            network.head.ids.copy_(torch.randperm(VOCAB)[: config.head.size].sort().values)
    return network


def outputs(network: EagleNetwork) -> torch.Tensor:
    """Logits of a row of 7 tokens, from seeded tokens and features."""
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCAB, (7,), generator=draw)
    features = torch.randn(7, 3 * network.config.target_hidden_size, generator=draw)
    with torch.no_grad():
        hidden, state = network(tokens, network.fuse(features), torch.arange(7), causal)
        hidden, _ = network(tokens.flip(0), state, torch.arange(7), causal)
        found: torch.Tensor = network.head.logits(hidden)
    return found


def save(network: EagleNetwork, path: Path, dtype: StoredAs = "fp32", **options: Any) -> DraftFiles:
    save_draft(network.state_dict(), network.config, path, {"seed": 3}, target=RECORD, dtype=dtype, **options)
    return read_draft(path, RECORD.num_layers)


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "q8"])
def test_round_trip(tmp_path: Path, head: str, dtype: StoredAs) -> None:
    """Trained, loaded and saved again: one network (B33), and from the second time on the same bytes (B20)."""
    network = network_of(config_of(head))
    files = save(network, tmp_path / "a", dtype)
    assert files.config == network.config
    assert files.notes == ()
    assert files.target == RECORD
    assert files.provenance == {"seed": 3}
    assert files.max_positions == 512
    loaded = load_network(files, EMBEDDING, 64)
    if dtype == "fp16":
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(parameter.half())
    if dtype != "q8":
        assert torch.equal(outputs(loaded), outputs(network))
        for name, tensor in network.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
    save(loaded, tmp_path / "b", dtype)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


@pytest.mark.parametrize("head", HEADS)
def test_quantised(tmp_path: Path, head: str) -> None:
    """Matrices as codes, near the numbers that were saved; vectors as they were. The kernels take the codes."""
    network = network_of(config_of(head))
    files = save(network, tmp_path / "a", "q8")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    for name, tensor in files.tensors.items():
        saved = network.state_dict()[name].numpy()
        if saved.ndim == 1:
            np.testing.assert_array_equal(tensor.dense(), saved)
            continue
        codes = tensor.codes()
        assert codes is not None
        np.testing.assert_allclose(tensor.dense(), saved, atol=np.abs(saved).max() / 127)
        repeated = np.repeat(codes.scales, 32, axis=1)[:, : saved.shape[1]]
        np.testing.assert_array_equal(tensor.dense(), codes.codes * repeated)
        matrix, rounded = kernel_matrix(tensor, "auto", "layer")
        assert (matrix.kind, matrix.n, matrix.k, rounded) == ("q8", *saved.shape, False)
        row = np.empty(saved.shape[1], np.float32)
        matrix.row(len(saved) - 1, row)
        np.testing.assert_array_equal(row, tensor.dense()[-1])
    assert stored["midlayer.self_attn.q_proj.weight.codes"].dtype == torch.int8
    assert stored["midlayer.self_attn.q_proj.weight.scales"].dtype == torch.float16


def test_half_precision_goes_to_the_kernels_as_it_is(tmp_path: Path) -> None:
    files = save(network_of(config_of()), tmp_path / "a", "fp16")
    matrix, rounded = kernel_matrix(files.tensors["head.up"], "auto", "vocab")
    assert (matrix.kind, rounded) == ("f16", False)
    x, out = random_matrix(1, 9).numpy(), np.empty((1, VOCAB), np.float32)
    matrix.linear(pool(1), x, out)
    np.testing.assert_allclose(out, x @ files.tensors["head.up"].dense().T, rtol=1e-4, atol=1e-5)
    assert isinstance(matrix, core.Matrix)


def test_a_reordered_quantised_head(tmp_path: Path) -> None:
    """Rows in another order of ids than the file's: codes and scales move together."""
    save(network_of(config_of("full")), tmp_path / "a", "q8")
    order = torch.randperm(VOCAB)
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    tensors |= {f"lm_head.weight.{part}": tensors[f"lm_head.weight.{part}"][order] for part in ("codes", "scales")}
    tensors["d2t"] = order - torch.arange(VOCAB)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    write_checkpoint(tmp_path / "b", config, {name: tensor.numpy() for name, tensor in tensors.items()}, {})
    one, two = (read_draft(tmp_path / name).tensors["head.weight"] for name in "ab")
    np.testing.assert_array_equal(one.dense(), two.dense())
    first, second = one.codes(), two.codes()
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.codes, second.codes)
    np.testing.assert_array_equal(first.scales, second.scales)


@pytest.mark.parametrize("rope", ROPES)
def test_the_rope_survives(tmp_path: Path, rope: str) -> None:
    """The draft's own rope, whatever its kind, is written and read (B32)."""
    network = network_of(config_of(rope=ROPES[rope]))
    files = save(network, tmp_path / "a")
    assert files.config.rope == ROPES[rope]
    assert torch.equal(outputs(load_network(files, EMBEDDING, 64)), outputs(network))


@pytest.mark.parametrize(
    "norms",
    [NormConfig(before_residual=True), NormConfig(before_fc=True), NormConfig(fc=True), NormConfig(output=True)],
    ids=["before_residual", "before_fc", "fc", "output"],
)
def test_the_norms_survive(tmp_path: Path, norms: NormConfig) -> None:
    network = network_of(config_of(norms=norms))
    files = save(network, tmp_path / "a")
    assert files.config.norms == norms
    assert torch.equal(outputs(load_network(files, EMBEDDING, 64)), outputs(network))
    without = load_network(replace(files, config=replace(files.config, norms=norms)), EMBEDDING, 64)
    assert torch.equal(outputs(without), outputs(network))


def test_two_layers(tmp_path: Path) -> None:
    network = network_of(config_of(num_layers=2))
    assert torch.equal(outputs(load_network(save(network, tmp_path / "a"), EMBEDDING, 64)), outputs(network))


def test_what_other_programs_find(tmp_path: Path) -> None:
    """Canonical names, and every field that EAGLE-3 programs look for, said and not left to a default (B33)."""
    save(network_of(config_of("slim", norms=NormConfig(before_residual=True))), tmp_path / "a", "fp16")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert tuple(tensors["lm_head_down.weight"].shape) == (9, HIDDEN)
    assert tuple(tensors["lm_head.weight"].shape) == (VOCAB, 9)
    assert not {"d2t", "t2d", "embed_tokens.weight"} & set(tensors)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    wanted = {
        "architectures": ["SlimLlamaForCausalLMEagle3"],
        "lm_head_rank": 9,
        "draft_vocab_size": VOCAB,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6], "use_aux_hidden_state": True},
        "eagle_aux_hidden_state_layer_ids": [2, 4, 7],
        "rope_theta": 500000.0,
        "torch_dtype": "float16",
    }
    assert config | wanted == config
    assert config["slimtier"] == {"format": 1, "capture_convention": "output", "target": RECORD.to_dict()}


def test_a_trimmed_head_is_written_as_offsets(tmp_path: Path) -> None:
    network = network_of(config_of("trimmed"))
    save(network, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(tensors["d2t"] + torch.arange(11), network.head.ids)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == network.head.ids.tolist()


ALL = {**full_state(), "embed_tokens.weight": EMBEDDING}


@pytest.mark.parametrize("name", [name for name in ALL if name != "embed_tokens.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    """No tensor of a draft is ever left at random numbers (B19)."""
    state = {key: tensor for key, tensor in ALL.items() if key != name}
    with pytest.raises(ModelFileError, match=f"lacks tensor {name}; fetch or convert it again"):
        read_draft(write_draft(tmp_path, EAGLE, state))


@pytest.mark.parametrize("name", ["lm_head_down.weight", "lm_head.weight"])
def test_a_missing_factor_is_named(tmp_path: Path, name: str) -> None:
    state = random_state() | {
        "lm_head_down.weight": random_matrix(9, HIDDEN),
        "lm_head.weight": random_matrix(VOCAB, 9),
    }
    read_draft(write_draft(tmp_path / "whole", EAGLE | {"lm_head_rank": 9, "draft_vocab_size": None}, state))
    del state[name]
    with pytest.raises(ModelFileError, match=f"lacks tensor {name}; fetch or convert it again$"):
        read_draft(write_draft(tmp_path, EAGLE | {"lm_head_rank": 9, "draft_vocab_size": None}, state))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"midlayer.extra.weight": torch.ones(2)}, "no use for tensor midlayer.extra.weight"),
        ({"input_norm.weight": torch.ones(96)}, "no use for tensor input_norm.weight"),
        ({"mask_hidden": torch.ones(1, 96)}, "no use for tensor mask_hidden"),
        ({"norm.weight": torch.ones(HIDDEN + 1)}, r"norm.weight has shape \[33\], its config asks for \[32\]"),
        ({"lm_head.weight": torch.ones(VOCAB, 9)}, r"lm_head.weight has shape \[48, 9\]"),
        ({"embed_tokens.weight": torch.ones(VOCAB, 9)}, r"embed_tokens.weight has shape \[48, 9\]"),
        ({"layers.0.hidden_norm.weight": torch.ones(HIDDEN)}, "twice, by two names"),
        ({"norm.weight.codes": torch.ones(2, 2, dtype=torch.int8)}, "no use for tensor norm.weight.codes"),
        ({"fc.weight": torch.ones(HIDDEN, 96, dtype=torch.int8)}, "fc.weight has the wrong kind of numbers"),
    ],
)
def test_a_tensor_too_many_or_misshapen(tmp_path: Path, change: State, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_draft(write_draft(tmp_path, EAGLE, ALL | change))


def test_a_renamed_tensor_is_a_missing_one(tmp_path: Path) -> None:
    state = {name.replace("hidden_norm", "hiddn_norm"): tensor for name, tensor in ALL.items()}
    with pytest.raises(ModelFileError, match=r"lacks tensor midlayer\.hidden_norm\.weight"):
        read_draft(write_draft(tmp_path, EAGLE, state))


def test_left_overs_of_trainers_are_passed_over(tmp_path: Path) -> None:
    more = {"verifier_norm.weight": torch.ones(3), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    read_draft(write_draft(tmp_path, EAGLE, ALL | more))


def test_the_targets_embedding_is_not_kept_twice(tmp_path: Path) -> None:
    """The file's copy of the target's embedding is dropped, one of its own is used (B20)."""
    files = read_draft(write_draft(tmp_path, EAGLE, ALL))
    assert "embedding" in files.tensors
    assert own_embedding(files, EMBEDDING) is EMBEDDING
    assert load_network(files, EMBEDDING, 64).embedding is EMBEDDING
    other = EMBEDDING + 1
    assert torch.equal(load_network(files, other, 64).embedding, EMBEDDING)
    assert "embedding" not in load_network(files, other, 64).state_dict()


def test_an_embedding_of_its_own_survives(tmp_path: Path) -> None:
    network = network_of(config_of())
    own = EMBEDDING + 1
    state = {**network.state_dict(), "embedding": own}
    save_draft(state, network.config, tmp_path / "a", {}, target=RECORD, dtype="fp32")
    files = read_draft(tmp_path / "a")
    assert torch.equal(load_network(files, EMBEDDING, 64).embedding, own)


def test_an_embedding_of_another_target(tmp_path: Path) -> None:
    files = read_draft(write_draft(tmp_path, EAGLE, full_state()))
    with pytest.raises(ModelFileError, match=r"an embedding of \[48, 32\] and the target's has \[48, 16\]"):
        load_network(files, torch.zeros(VOCAB, 16), 64)


def test_a_head_is_borrowed_only_when_the_config_says_so(tmp_path: Path) -> None:
    """Tied, or draft_vocab_size null, and only whole (B19, B20)."""
    head, state = random_matrix(VOCAB, HIDDEN, seed=9), random_state()
    wanted = network_of(config_of("full", target_hidden_size=HIDDEN, capture=(1, 3, 4)))
    for name, fields, source in (
        ("null", {"draft_vocab_size": None}, "target"),
        ("tied", {"tie_word_embeddings": True}, "embedding"),
    ):
        files = read_draft(write_draft(tmp_path / name, EAGLE | fields, state))
        assert files.head_source == source
        assert [f"the head's matrix is the {source}'s" in note for note in files.notes] == [True]
        network = load_network(files, EMBEDDING, 64, head)
        assert torch.equal(network.head.weight, head if source == "target" else EMBEDDING)
        wanted.load_state_dict(network.state_dict())
        assert torch.equal(outputs(network), outputs(wanted))
    with pytest.raises(ModelFileError, match=r"must be \[48, 32\]: none was given"):
        load_network(read_draft(tmp_path / "null"), EMBEDDING, 64)
    with pytest.raises(ModelFileError, match=r"must be \[48, 32\]: it has \[48, 16\]"):
        load_network(read_draft(tmp_path / "null"), EMBEDDING, 64, torch.zeros(VOCAB, 16))


def test_a_reduced_head_is_never_tied(tmp_path: Path) -> None:
    """tie_word_embeddings inherited from the target does not make a head of 40 rows of an embedding of 48 (B20)."""
    config = EAGLE | {"tie_word_embeddings": True, "draft_vocab_size": 40}
    ids = torch.arange(40) + 8
    mapping = {"d2t": ids - torch.arange(40)}
    with pytest.raises(ModelFileError, match=r"lacks tensor lm_head\.weight; fetch or convert it again$"):
        read_draft(write_draft(tmp_path / "without", config, random_state() | mapping))
    own = random_matrix(40, HIDDEN, seed=9)
    files = read_draft(write_draft(tmp_path / "with", config, random_state() | mapping | {"lm_head.weight": own}))
    network = load_network(files, EMBEDDING, 64)
    assert torch.equal(network.head.weight, own)
    assert torch.equal(network.head.ids, ids)


def test_a_network_is_not_loaded_in_part(tmp_path: Path) -> None:
    files = read_draft(write_draft(tmp_path, EAGLE, full_state()))
    less = {name: tensor for name, tensor in files.tensors.items() if name != "norm.weight"}
    with pytest.raises(RuntimeError, match=r"norm\.weight"):
        load_network(replace(files, tensors=less), EMBEDDING, 64)


def damaged(change: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = "fc.weight"
    if change == "scales missing":
        return {key: tensor for key, tensor in tensors.items() if key != f"{name}.scales"}
    if change == "scales misshapen":
        return tensors | {f"{name}.scales": tensors[f"{name}.scales"][:, :-1].clone()}
    if change == "codes as floats":
        return tensors | {f"{name}.codes": tensors[f"{name}.codes"].float()}
    return {key: tensor for key, tensor in tensors.items() if key != f"{name}.codes"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("scales missing", "fc.weight.codes is no matrix of 8-bit codes with scales"),
        ("scales misshapen", "fc.weight.codes is no matrix"),
        ("codes as floats", "fc.weight.codes is no matrix"),
        ("codes missing", "lacks tensor fc.weight"),
    ],
)
def test_damaged_codes(tmp_path: Path, change: str, words: str) -> None:
    save(network_of(config_of()), tmp_path / "a", "q8")
    tensors = damaged(change, load_file(tmp_path / "a" / "model.safetensors"))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    write_checkpoint(tmp_path / "b", config, {name: tensor.numpy() for name, tensor in tensors.items()}, {})
    with pytest.raises(ModelFileError, match=words):
        read_draft(tmp_path / "b")


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (float("nan"), "fp32", "values that are not finite"),
        (float("inf"), "q8", "values that are not finite"),
        (1e5, "fp16", "values that float16 cannot hold; save it as fp32"),
        (1e8, "q8", "values that float16 cannot hold"),
    ],
)
def test_numbers_that_cannot_be_kept(tmp_path: Path, value: float, dtype: StoredAs, words: str) -> None:
    network = network_of(config_of())
    with torch.no_grad():
        network.head.up[3, 2] = value
    with pytest.raises(NonFiniteError, match=f"tensor lm_head.weight has {words}"):
        save(network, tmp_path / "a", dtype)
    assert not list(tmp_path.iterdir())


def test_a_state_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    network = network_of(config_of())
    state = network.state_dict()
    state["more"] = torch.ones(2)
    with pytest.raises(ModelFileError, match="no use for tensor more"):
        save_draft(state, network.config, tmp_path / "a", {}, target=RECORD)
    del state["more"], state["norm.weight"]
    with pytest.raises(ModelFileError, match=r"lacks tensor norm\.weight"):
        save_draft(state, network.config, tmp_path / "a", {}, target=RECORD)
    with pytest.raises(ConfigError, match="give the record of its own target"):
        save_draft(state, network.config, tmp_path / "a", {}, target=replace(RECORD, vocab_size=9))
    assert not list(tmp_path.iterdir())


def test_a_damaged_record_of_the_target(tmp_path: Path) -> None:
    save(network_of(config_of()), tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["slimtier"]["target"]["layers"] = 3
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    write_checkpoint(tmp_path / "b", config, {name: tensor.numpy() for name, tensor in tensors.items()}, {})
    with pytest.raises(ModelError, match=r"unknown setting of .*slimtier.target 'layers': did you mean 'num_layers'"):
        read_draft(tmp_path / "b")


def test_a_record_is_of_the_vocabulary() -> None:
    """Two tokens that change places change the hash; a template does not change it, and has one of its own."""
    from slimtier.models.base import TargetInfo
    from slimtier.models.tokenizer import Tokenizer
    from tests.small_tokenizer import small_tokenizer

    info = TargetInfo("/somewhere/a-target", "native", "fp32", 67, 24, 8, 512, (2,), True, 0)

    def record(size: int, template: str | None) -> TargetRecord:
        return TargetRecord.of(info, Tokenizer(small_tokenizer(size).backend_tokenizer, {}, (2,), template))

    plain, again, other, chat = record(67, None), record(67, None), record(66, None), record(67, "{{ messages }}")
    assert plain == again
    assert plain.name == "a-target"
    assert plain.vocab_sha256 == chat.vocab_sha256 != other.vocab_sha256
    assert plain.chat_template_sha256 is None
    assert chat.chat_template_sha256 is not None
    assert TargetRecord.of(info).vocab_sha256 is None
