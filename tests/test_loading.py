"""From files on disk to answers, on both runtimes, with tiny models made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.engine import Engine
from slimtier.errors import ConfigError, UnsupportedError, VocabularyError
from slimtier.result import Result

Make = Callable[..., Path]


def write_tokenizer(directory: Path, swapped: bool = False) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        letters[40], letters[41] = letters[41], letters[40]
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


@pytest.fixture
def llama(tmp_path: Path) -> Make:
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(name: str, swapped: bool = False, **changes: Any) -> Path:
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(**{"vocab_size": 264, "eos_token_id": 256, **sizes, **changes}))
        model.lm_head.weight.data *= 8.0  # far from ties
        model.save_pretrained(tmp_path / name)
        write_tokenizer(tmp_path / name, swapped)
        return tmp_path / name

    return make


def answer(directory: Path, **choices: Any) -> Result:
    result = Engine.from_pretrained(directory, threads=1, **choices).generate("The sky is", max_new_tokens=24)
    assert isinstance(result, Result)
    return result


def test_both_runtimes_and_all_drafters_give_the_same_tokens(llama: Make) -> None:
    directory = llama("target")
    small = llama("small", num_hidden_layers=1)
    want = answer(directory, runtime="hf", drafter="none")
    assert want.run.runtime == "hf"
    for choices in (
        {"drafter": "ngram"},
        {"drafter": "layer_skip", "skip_layers": "1,2"},
        {"drafter": "draft_model", "draft_model": str(small)},
    ):
        for runtime in ("hf", "native"):
            found = answer(directory, runtime=runtime, precision="fp32", **choices)
            assert found.token_ids == want.token_ids
            assert (found.run.runtime, found.run.precision, found.run.drafter) == (runtime, "fp32", choices["drafter"])


def test_a_padded_vocabulary_may_draft_and_another_may_not(llama: Make) -> None:
    directory, padded = llama("target"), llama("padded", vocab_size=320)
    found = answer(directory, drafter="draft_model", draft_model=str(padded))
    assert found.token_ids == answer(directory, drafter="none").token_ids
    with pytest.raises(VocabularyError, match="token 40"):
        answer(directory, drafter="draft_model", draft_model=str(llama("other", swapped=True)))


def test_an_encoder_decoder_runs_on_hf_alone(tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=264, d_model=32, d_ff=64, num_layers=2, num_heads=2, d_kv=16, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    plain = answer(tmp_path, runtime="hf", drafter="none")
    assert plain.stats.num_prompt_tokens == len("The sky is")
    assert answer(tmp_path, runtime="hf", drafter="ngram", min_ngram=1).token_ids == plain.token_ids
    with pytest.raises(ConfigError, match="encoder-decoder"):
        answer(tmp_path, runtime="hf", drafter="layer_skip", skip_layers=1)
    with pytest.raises(UnsupportedError, match="--runtime hf"):
        answer(tmp_path)
