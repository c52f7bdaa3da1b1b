"""Encoder-decoders and mixtures of experts from a directory on disk, through the engine and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from slimtier.cli.main import app
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.result import Result
from tests.models.hf_models import CONFIGS, build, one_thread
from tests.small_tokenizer import small_tokenizer

PROMPTS = ["the cat sat on the cat sat on the", "a", "no bees here"]
FAMILIES = ["t5", "mixtral", "qwen3_moe"]


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory as save_pretrained leaves it, with a tokenizer."""
    path = tmp_path_factory.mktemp(request.param)
    config = CONFIGS[request.param]()
    if config.is_encoder_decoder:  # transformers' own generate has caches for as many layers as the encoder has
        config.num_decoder_layers = config.num_layers
        config.eos_token_id, config.pad_token_id = 2, 0
    build(config).save_pretrained(path)
    small_tokenizer().save_pretrained(path)
    return path


def answer(engine: Engine, prompt: str, **options: Any) -> Result:
    found = engine.generate(prompt, **options)
    assert isinstance(found, Result)
    return found


def plain(path: Path, prompt: str, max_new_tokens: int) -> list[int]:
    """What transformers' own generate writes."""
    family = transformers.AutoConfig.from_pretrained(path)
    load = transformers.AutoModelForSeq2SeqLM if family.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = load.from_pretrained(path)
    ids = transformers.AutoTokenizer.from_pretrained(path)(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False)
    return out[0, 1 if family.is_encoder_decoder else ids.shape[1] :].tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_engine_writes_what_transformers_does_with_any_drafter(saved: Path, prompt: str) -> None:
    expected = plain(saved, prompt, 20)
    for drafter in ("none", "ngram"):
        engine = Engine.from_pretrained(str(saved), runtime="hf", drafter=drafter, num_speculative_tokens=3)
        result = answer(engine, prompt, max_new_tokens=20)
        assert list(result.token_ids) == expected
        assert (result.run.runtime, result.run.drafter, result.lossless) == ("hf", drafter, True)
        assert result.text == engine.tokenizer.decode(expected)  # type: ignore[union-attr]


def test_a_batch_and_a_stream_are_the_single_answers(saved: Path) -> None:
    engine = Engine.from_pretrained(str(saved), runtime="hf", drafter="ngram")
    single = [answer(engine, prompt, max_new_tokens=12).token_ids for prompt in PROMPTS]
    together = engine.generate(PROMPTS, max_new_tokens=12)
    assert isinstance(together, list)
    assert [result.token_ids for result in together] == single
    with engine.stream(PROMPTS[0], max_new_tokens=12) as stream:
        assert tuple(token for step in stream for token in step.token_ids) == single[0]
    seeded = engine.generate(PROMPTS[0], n=2, temperature=1.0, seed=3, max_new_tokens=12)
    again = engine.generate(PROMPTS[0], n=2, temperature=1.0, seed=3, max_new_tokens=12)
    assert [one.token_ids for one in seeded] == [one.token_ids for one in again]  # type: ignore[union-attr]


def test_the_command_decodes_it_with_and_without_drafting(saved: Path) -> None:
    found = []
    for drafter in ("none", "ngram"):
        flags = ["--runtime", "hf", "--model", str(saved), "--drafter", drafter, "--max-new-tokens", "20", "--json"]
        done = CliRunner().invoke(app, ["generate", PROMPTS[0], *flags])
        assert done.exit_code == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["token_ids"] == found[1]["token_ids"] == plain(saved, PROMPTS[0], 20)
    assert found[0]["text"] == found[1]["text"]
    assert found[1]["stats"]["num_target_calls"] <= found[0]["stats"]["num_target_calls"]


def test_what_drafts_with_a_decoder_alone_is_refused_for_an_encoder_decoder(saved: Path) -> None:
    if "t5" not in saved.name:
        result = answer(
            Engine.from_pretrained(str(saved), runtime="hf", drafter="layer_skip", skip_layers=1),
            PROMPTS[0],
            max_new_tokens=12,
        )
        assert list(result.token_ids) == plain(saved, PROMPTS[0], 12)
        return
    with pytest.raises(ConfigError, match="encoder-decoder"):
        Engine.from_pretrained(str(saved), runtime="hf", drafter="layer_skip", skip_layers=1)


def test_native_names_the_way_out(saved: Path) -> None:
    done = CliRunner().invoke(app, ["generate", "a", "--runtime", "native", "--model", str(saved)])
    assert done.exit_code != 0
    assert "--runtime hf" in done.stderr
