"""A draft's directory beside its target: found, checked, run on every runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

import slimtier
from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.base import identity_of
from slimtier.drafters.eagle import open as opening
from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.open import find_draft, open_drafter, shipped_draft
from slimtier.drafters.eagle.runtime_native import NativeRuntime
from slimtier.drafters.eagle.runtime_torch import TorchRuntime
from slimtier.engine import Engine
from slimtier.errors import ConfigError, ModelFileError, VocabularyError
from slimtier.models.hf import HfTarget
from slimtier.models.native_torch import TorchTarget
from slimtier.models.resolve import ModelFiles
from slimtier.models.safetensors_file import open_safetensors
from slimtier.models.tokenizer import load_tokenizer
from slimtier.registry import check_settings
from tests.drafters.eagle.drafts import save_random
from tests.generating import assert_as_plain, batch, model_of
from tests.models.native_models import build
from tests.small_tokenizer import small_tokenizer
from tests.stubs import StubTarget

OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory, its tokenizer too."""
    path = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(path)
    small_tokenizer(96).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def draft(model: Path) -> Path:
    engine = Engine.from_pretrained(model, drafter="none")
    return save_random(engine.target, model.parent / "draft", engine.tokenizer)


def test_evidence_about_one_draft_is_not_about_another(model: Path, draft: Path, tmp_path: Path) -> None:
    """Trained anew, run at another precision, ended earlier; where it lies and what auto stands for do not matter."""
    engine = Engine.from_pretrained(model, drafter="none")
    moved = tmp_path / "moved"
    copytree(draft, moved)
    other = save_random(engine.target, tmp_path / "other", engine.tokenizer, seed=1)
    given: list[dict[str, Any]] = [{"draft": draft}, {"draft": other}, {"draft": draft, "draft_precision": "fp32"}]
    for drafter, more in (("eagle3", {"confidence": 0.5}), ("auto", {"max_ngram": 3})):
        found = [Engine.from_pretrained(model, drafter=drafter, **one) for one in [*given, {"draft": draft, **more}]]
        known = [identity_of(one.drafter) for one in found]
        assert len(set(known)) == 4, known
        for same in ({"draft": moved}, {"draft": draft, "draft_precision": "q8"}):
            assert identity_of(Engine.from_pretrained(model, drafter=drafter, **same).drafter) == known[0]


@pytest.mark.parametrize("runtime", ["native", "hf"])
@pytest.mark.parametrize("drafter", ["eagle3", "auto"])
def test_by_name_on_both_runtimes(model: Path, draft: Path, runtime: str, drafter: str) -> None:
    plain = Engine.from_pretrained(model, drafter="none", runtime=runtime)
    engine = Engine.from_pretrained(model, drafter=drafter, runtime=runtime, draft=draft)
    kind = NativeRuntime if runtime == "native" else TorchRuntime
    network = engine.drafter if isinstance(engine.drafter, EagleDrafter) else engine.drafter.network  # type: ignore[attr-defined]
    assert isinstance(network.runtime, kind)
    for prompt in ("the cat sat on the cat sat", ["a", "no bees here"]):
        wanted, found = (each.generate(prompt, **OPTIONS) for each in (plain, engine))
        if isinstance(prompt, str):
            wanted, found = [wanted], [found]
        assert [one.token_ids for one in found] == [one.token_ids for one in wanted]  # type: ignore[union-attr]
    assert engine.num_speculative_tokens == (5 if drafter == "eagle3" else 12)


def test_torch_operations_as_the_target(model: Path, draft: Path) -> None:
    target = TorchTarget(open_safetensors(model), name="tiny", device="cpu")
    drafter = open_drafter(draft, target)
    assert isinstance(drafter.runtime, TorchRuntime)
    wanted = Engine(target).generate([5, 6, 7], **OPTIONS)
    assert Engine(target, drafter).generate([5, 6, 7], **OPTIONS).token_ids == wanted.token_ids  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="draft_precision q8"):
        open_drafter(draft, target, precision="q8")


@pytest.mark.parametrize("drafter", ["eagle3", "auto"])
@pytest.mark.parametrize("copies", [1, 2])
def test_inside_transformers_generate(tmp_path: Path, drafter: str, copies: int) -> None:
    hf = model_of("llama")
    target = HfTarget(hf)
    layers = target.info.num_layers
    path = save_random(target, tmp_path / "draft", capture=tuple(range(min(layers, 3))))
    speculate = slimtier.custom_generate(drafter=drafter, draft=path, num_speculative_tokens=3)
    assert_as_plain(hf, speculate, **batch("llama"), max_new_tokens=16, do_sample=False)
    sampled = {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": copies, "custom_generate": speculate}
    outputs = []
    for _ in range(2):
        torch.manual_seed(4)
        outputs.append(hf.generate(**batch("llama"), **sampled).tolist())
    assert outputs[0] == outputs[1]
    drafter_used: Any = speculate._parts.drafter
    assert getattr(drafter_used, "network", drafter_used)._rows == {}


# The draft that is shipped.


def test_a_shipped_draft_is_found_by_the_model_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SHIPPED", tmp_path)
    info = StubTarget().info
    aliased = replace(info, name="smollm2-135m")
    assert shipped_draft(aliased.name) is None
    with pytest.raises(ConfigError, match="no draft is shipped for smollm2-135m"):
        find_draft("auto", aliased)
    (tmp_path / "smollm2-135m").mkdir()
    assert shipped_draft(aliased.name) == tmp_path / "smollm2-135m"
    for name in ("/a/b/SmolLM2-135M-Instruct.Q4_1.gguf", "HuggingFaceTB/SmolLM2-135M-Instruct", "build/smollm2-135m"):
        assert find_draft("auto", replace(info, name=name)).name == "smollm2-135m"
    assert shipped_draft("smollm2-360m") is None
    with pytest.raises(ConfigError, match="cannot do without"):
        find_draft("none", aliased)


def test_auto_takes_the_shipped_draft_unless_told_otherwise(
    model: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, capture in ((None, ()), ("none", ()), (draft, (0, 1, 3))):
        settings = {} if given is None else {"draft": given}
        engine = Engine.from_pretrained(model, **settings)
        assert isinstance(engine.drafter, AutoDrafter)
        assert engine.drafter.capture == capture
    monkeypatch.setattr(opening, "shipped_draft", lambda model: draft)
    assert Engine.from_pretrained(model).drafter.capture == (0, 1, 3)
    assert Engine.from_pretrained(model, draft="none").drafter.capture == ()


# What does not fit.


@pytest.mark.parametrize(
    ("drafter", "settings", "message"),
    [
        ("eagle3", {"draft": "/nowhere"}, "give the directory of a draft"),
        ("eagle3", {"draft": 5}, "give the directory of a draft"),
        ("eagle3", {"confidence": 1.0}, "confidence is 1.0"),
        ("eagle3", {"confidence": "high"}, "confidence is 'high'"),
        ("eagle3", {"draft_precision": "q4"}, "draft_precision is 'q4'"),
        ("auto", {"confidence": 0.5}, "--drafter eagle3"),
        ("ngram", {"draft": "auto"}, "--drafter auto or --drafter eagle3"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(drafter: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_settings(drafter, "lossless", settings)
    assert "\n" not in str(caught.value)


def test_a_draft_of_another_model_is_refused(model: Path, draft: Path, tmp_path: Path) -> None:
    target = Engine.from_pretrained(model, drafter="none").target
    for info, error, message in (
        (replace(target.info, hidden_size=32), ConfigError, "states of width 64 and"),
        (replace(target.info, vocab_size=97), VocabularyError, "has 96 tokens and"),
        (replace(target.info, num_layers=3), ModelFileError, "layer 3"),
    ):
        other = StubTarget()
        other.info = info
        with pytest.raises(error, match=message):
            open_drafter(draft, other)
    small_tokenizer(60).save_pretrained(tmp_path)
    with pytest.raises(VocabularyError, match="not those that"):
        open_drafter(draft, target, load_tokenizer(ModelFiles("x", "safetensors", tmp_path)))


def test_guesses_are_said(model: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Engine.from_pretrained(model, drafter="none").target
    read = opening.read_draft
    monkeypatch.setattr(opening, "read_draft", lambda *given: replace(read(*given), notes=("the layers were guessed",)))
    with pytest.warns(UserWarning, match="the layers were guessed"):
        open_drafter(draft, target)
