"""Loading for the hf runtime: what works from a directory, and what every bad input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from slimtier.errors import ConfigError, MissingDependencyError, ModelFileError, UnsupportedError
from slimtier.models.hf import HfTarget
from tests.models.model_files import VOCAB, Recipe, write_gguf

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_directory(directory: Path, precision: str, dtype: torch.dtype) -> None:
    target = HfTarget.from_pretrained(directory, precision=precision)
    assert (target.info.name, target.info.precision) == (str(directory), precision)
    assert target.model.dtype == dtype
    assert HfTarget.from_pretrained(directory, name="tiny").info.name == "tiny"


def test_an_encoder_decoder_is_recognised(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    assert HfTarget.from_pretrained(tmp_path).is_encoder_decoder


def test_a_gguf_file_becomes_dense(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    wanted = write_gguf(tmp_path / "tiny.gguf", Recipe(meta={"vocab_size": VOCAB}))
    target = HfTarget.from_pretrained(tmp_path / "tiny.gguf")
    state = target.model.state_dict()
    for ours, theirs in [("blk.1.attn_q", "layers.1.self_attn.q_proj"), ("token_embd", "embed_tokens")]:
        assert torch.equal(state[f"model.{theirs}.weight"], torch.from_numpy(wanted[f"{ours}.weight"]))


def test_a_missing_package_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_accelerate(*args: object, **kwargs: object) -> None:
        raise ImportError("accelerate is required when loading a GGUF file `pip install accelerate`")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", without_accelerate)
    with pytest.raises(MissingDependencyError, match="pip install accelerate"):
        HfTarget.from_pretrained(directory)


def test_bad_files(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"no precision 'q4'.*fp32, bf16"):
        HfTarget.from_pretrained(directory, precision="q4")
    with pytest.raises(ModelFileError, match=r"no such file.*check the path"):
        HfTarget.from_pretrained(directory / "absent.gguf")
    with pytest.raises(ModelFileError, match="cannot read"):
        HfTarget.from_pretrained(directory / "empty")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match=r"lacks 1 tensors \(model.layers.1.mlp.down_proj.weight"):
        HfTarget.from_pretrained(directory)
    weights["model.layers.1.mlp.down_proj.weight"] = torch.zeros(16, 25)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match="tensors of another shape than its config"):
        HfTarget.from_pretrained(directory)
    (directory / "model.safetensors").write_bytes(b"\x10\x00\x00")
    with pytest.raises(ModelFileError, match="cannot read"):
        HfTarget.from_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "no_such_family"}))
    with pytest.raises(UnsupportedError, match="no_such_family"):
        HfTarget.from_pretrained(directory)
