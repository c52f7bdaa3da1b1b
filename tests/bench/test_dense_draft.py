"""A draft as vLLM reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from slimtier.bench.checkpoint import dense_draft
from slimtier.drafters.eagle.load import read_draft
from slimtier.drafters.eagle.open import SHIPPED
from slimtier.drafters.eagle.whole import save_whole
from slimtier.errors import ConfigError, InputError


def test_the_shipped_draft_with_a_full_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTIER_CACHE", str(tmp_path))
    path = dense_draft("auto", "smollm2-135m")
    assert dense_draft(str(SHIPPED / "smollm2-135m"), "another") == path, "it is made once"
    assert json.loads((path / "config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]
    slim, whole = read_draft(SHIPPED / "smollm2-135m"), read_draft(path)
    assert (whole.config.head.kind, whole.config.capture) == ("full", slim.config.capture)
    head = slim.tensors["head.up"].dense() @ slim.tensors["head.down"].dense()
    assert np.array_equal(load_file(path / "model.safetensors")["lm_head.weight"], head)
    same = [name for name in slim.tensors if not name.startswith("head.")]
    assert all(np.array_equal(slim.tensors[name].dense(), whole.tensors[name].dense()) for name in same)
    assert dense_draft(str(path), "another") == path, "others are taken as they are"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_cannot_be_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTIER_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="no draft is shipped for other: give draft"):
        dense_draft("auto", "other")
    path = dense_draft("auto", "smollm2-135m")
    with pytest.raises(ConfigError, match="has a full head: only a slim draft"):
        save_whole(path, tmp_path / "again", {})
