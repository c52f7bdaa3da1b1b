"""`model.generate(custom_generate=slimtier.custom_generate(...))` against the same call without it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    WatermarkingConfig,
)

import slimtier
from slimtier.errors import VocabularyError
from slimtier.models.hf import HfTarget
from slimtier.models.hf_load import decoder_layers
from tests.generating import FAMILIES, NEW, assert_as_plain, batch, model_of, self_drafting, speculation
from tests.models.hf_models import COMMON, CONFIGS, VOCAB, build
from tests.small_tokenizer import small_tokenizer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("drafter", "k"), [("none", 5), ("ngram", 1), ("ngram", 5), ("layer_skip", 5)])
def test_greedy_is_plain_generate(family: str, drafter: str, k: int) -> None:
    if drafter == "layer_skip" and family == "t5":
        pytest.skip("an encoder-decoder has no such drafter")
    assert_as_plain(model_of(family), speculation(drafter, k), **batch(family), max_new_tokens=NEW)
    one = {name: tensor[1:2] for name, tensor in batch(family).items()}
    assert_as_plain(model_of(family), speculation(drafter, k), **one, max_new_tokens=24)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mixtral"])
def test_a_draft_model_is_an_object_and_saves_calls(family: str) -> None:
    model, calls = model_of(family), []
    assert_as_plain(model, self_drafting(family), **batch(family), max_new_tokens=NEW, eos_token_id=None)
    other = build(CONFIGS[family]())
    speculate = slimtier.custom_generate(drafter="draft_model", draft_model=other)
    one = {name: tensor[1:2] for name, tensor in batch(family).items()}
    assert_as_plain(model, speculate, **one, max_new_tokens=12, eos_token_id=None)
    hook = decoder_layers(model.get_decoder())[0].register_forward_hook(lambda *_: calls.append(1))
    model.generate(**one, max_new_tokens=12, eos_token_id=None, custom_generate=speculate)
    hook.remove()
    assert len(calls) == 1 + 2  # the prefill, and 12 tokens in two rounds of 5 + 1


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_end_token_anywhere_in_a_block(family: str) -> None:
    model, inputs = model_of(family), batch(family)
    length = 1 if family == "t5" else inputs["input_ids"].shape[1]
    free = model.generate(**inputs, max_new_tokens=12, eos_token_id=None)[:, length:]
    speculate = speculation("ngram") if family == "t5" else self_drafting(family)
    for index in range(12):
        ends = [int(free[0, index]), int(free[2, 11 - index])]
        assert_as_plain(model, speculate, **inputs, max_new_tokens=12, eos_token_id=ends, pad_token_id=1)
        assert_as_plain(model, speculate, **inputs, max_new_tokens=12, eos_token_id=ends[0], pad_token_id=1)
    for budget in (1, 2, 5, 6, 7):
        assert_as_plain(model, speculate, **inputs, max_new_tokens=budget)


def not_after(token_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Bans, in row r, the tokens that lie r + 1 above its last one."""
    for row, last in enumerate(token_ids[:, -1].tolist()):
        scores[row, (last + row + 1) % VOCAB] = -torch.inf
        scores[row, :5] -= row
    return scores


def allowed(prompt: int, prefix: torch.Tensor) -> list[int]:
    last = int(prefix[-1])  # 0 is padding; a row's own tokens are odd and even in turn, by its prompt
    assert last % 2 != prompt % 2 or last == 0 or len(prefix) <= 10, "asked about another row's tokens"
    return list(range(4 + (prompt + 1) % 2, VOCAB, 2))


PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "ngrams": {"no_repeat_ngram_size": 2},
    "encoder_ngrams": {"encoder_no_repeat_ngram_size": 2},
    "encoder_repetition": {"encoder_repetition_penalty": 1.8},
    "bad_words": {"bad_words_ids": [[28], [56, 50], [13]]},
    "bias": {"sequence_bias": {(11,): 5.0, (12, 13): 9.0}},
    "min_new": {"min_new_tokens": 9},
    "min_length": {"min_length": 15},
    "forced_eos": {"forced_eos_token_id": 2},
    "forced_bos": {"forced_bos_token_id": 9},
    "decay": {"exponential_decay_length_penalty": (4, 1.5)},
    "suppress": {"suppress_tokens": [5, 6, 7], "begin_suppress_tokens": [8, 9]},
    "allowed": {"prefix_allowed_tokens_fn": allowed},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=4.0, seeding_scheme="selfhash", context_width=2)},
    "renormalise": {"renormalize_logits": True, "remove_invalid_values": True},
    "own": {"logits_processor": LogitsProcessorList([not_after])},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "bad_words_ids": [[28]]},
}


FOR_ENCODERS = ["encoder_ngrams", "encoder_repetition", "forced_bos", "allowed", "all"]


@pytest.mark.parametrize(
    ("family", "name"), [*(("llama", name) for name in PROCESSORS), *(("t5", name) for name in FOR_ENCODERS)]
)
def test_logits_processors_see_what_they_see_in_generate(family: str, name: str) -> None:
    model, inputs, options = model_of(family), batch(family), PROCESSORS[name]
    speculate = speculation("ngram") if family == "t5" else self_drafting(family)
    assert_as_plain(model, speculate, **inputs, max_new_tokens=NEW, **options)
    one = {name: tensor[:1] for name, tensor in inputs.items()}
    assert_as_plain(model, speculate, **one, max_new_tokens=NEW, **options)


@pytest.mark.parametrize("name", ["repetition", "ngrams", "bad_words", "own", "allowed"])
def test_each_processor_test_changes_what_is_written(name: str) -> None:
    model, inputs = model_of("llama"), batch("llama")
    options = {"max_new_tokens": NEW, "eos_token_id": None}
    assert model.generate(**inputs, **options).tolist() != (
        model.generate(**inputs, **options, **PROCESSORS[name]).tolist()
    )


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_processors_with_a_drafter_that_is_often_wrong(family: str) -> None:
    for drafter in ("ngram", "layer_skip"):
        assert_as_plain(
            model_of(family), speculation(drafter), **batch(family), max_new_tokens=NEW, **PROCESSORS["all"]
        )


def test_padding_is_no_repetition() -> None:
    model, inputs = model_of("llama"), batch("llama")
    for token in (28, 41, 5):  # tokens that the model would write
        inputs["input_ids"][inputs["attention_mask"] == 0] = token
        assert_as_plain(model, self_drafting("llama"), **inputs, max_new_tokens=NEW, repetition_penalty=3.0)


@pytest.mark.parametrize("stopped_by", ["eos", "criterion"])
def test_a_row_that_ended_is_not_decoded_any_more(stopped_by: str) -> None:
    model, inputs, calls = model_of("llama"), batch("llama"), []
    length = inputs["input_ids"].shape[1]
    last = int(model.generate(**inputs, max_new_tokens=2)[2, -1])

    def third_row(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([False, False, input_ids.shape[1] >= length + 2])

    options: dict[str, Any] = {"eos_token_id": last}
    if stopped_by == "criterion":
        options = {"eos_token_id": 2, "stopping_criteria": StoppingCriteriaList([third_row])}
    speculate = speculation("none")
    assert_as_plain(model, speculate, **inputs, max_new_tokens=NEW, **options)
    hook = decoder_layers(model.get_decoder())[0].register_forward_hook(lambda *_: calls.append(1))
    found = model.generate(**inputs, max_new_tokens=NEW, custom_generate=speculate, **options)
    hook.remove()
    assert (found[2, length + 2 :] == 0).all()
    assert not (found[:2, length + 2 :] == 0).all(1).any()
    assert len(calls) == 3 + NEW + NEW + 2  # a prefill for each row, then each row's tokens


def test_a_batch_that_ended_as_one_is_not_decoded_any_more() -> None:
    model, calls = model_of("llama"), []
    enough = StoppingCriteriaList([lambda ids, scores, **_: ids.shape[1] >= 14])
    options = {**batch("llama"), "max_new_tokens": NEW, "stopping_criteria": enough}
    assert_as_plain(model, speculation("none"), **options)
    hook = decoder_layers(model.get_decoder())[0].register_forward_hook(lambda *_: calls.append(1))
    model.generate(**options, custom_generate=speculation("none"))
    hook.remove()
    assert len(calls) == 3 * (1 + 4)  # a prefill for each row, then its tokens


class Counting:
    """Stops each row when the calls and the row's tokens say so: every call must come once, and in order."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] % 5 == len(self.lengths) % 5


def agreeing(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    """Ends all rows at once, by what the whole batch holds."""
    stop = int(input_ids[:, -2:].sum()) % 7 == 0
    return torch.full((len(input_ids),), stop)


def criteria() -> dict[str, dict[str, Any]]:
    return {
        "counting": {"stopping_criteria": StoppingCriteriaList([Counting()])},
        "counting_endless": {"stopping_criteria": StoppingCriteriaList([Counting()]), "eos_token_id": None},
        "agreeing": {"stopping_criteria": StoppingCriteriaList([agreeing])},
        "truth": {"stopping_criteria": StoppingCriteriaList([lambda ids, scores, **_: ids.shape[1] > 14])},
        "length": {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(13)])},
        "length_past": {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(3)])},
        "time": {"max_time": 0.0},
    }


@pytest.mark.parametrize("name", criteria())
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_stopping_criteria_are_called_once_a_token(family: str, name: str) -> None:
    model, lengths = model_of(family), []
    speculate = speculation("ngram") if family == "t5" else self_drafting(family)
    for rows in (1, 3):
        answers = []
        for custom in (None, speculate):
            options = criteria()[name]  # afresh, for they count
            inputs = batch(family, rows)
            answers.append(model.generate(**inputs, max_new_tokens=NEW, **options, custom_generate=custom).tolist())
            own = [one for one in options.get("stopping_criteria", []) if isinstance(one, Counting)]
            lengths.append([one.lengths for one in own])
        assert answers[0] == answers[1]
        assert lengths[-1] == lengths[-2]


@pytest.mark.parametrize("rows", [1, 3])
def test_stop_strings_across_tokens(rows: int) -> None:
    model, tokenizer = model_of("llama"), small_tokenizer()
    inputs = batch("llama", rows)
    options = {"max_new_tokens": NEW, "eos_token_id": None}
    free = model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
    words = ["".join(tokenizer.convert_ids_to_tokens(row)) for row in free.tolist()]
    for start in range(1, 2 * NEW - 3, 3):
        stop = [text[start : start + 3] for text in words]
        plain = model.generate(**inputs, **options, stop_strings=stop, tokenizer=tokenizer)
        found = model.generate(
            **inputs,
            **options,
            stopping_criteria=StoppingCriteriaList([StopStringCriteria(tokenizer, stop)]),
            custom_generate=self_drafting("llama"),
        )
        assert found.tolist() == plain.tolist()


class Recording:
    """A streamer that writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("rows", [1, 3])
def test_a_streamer_hears_what_it_hears_from_generate(rows: int) -> None:
    model, heard = model_of("llama"), []
    for custom in (None, self_drafting("llama"), speculation("none")):
        streamer = Recording()
        model.generate(**batch("llama", rows), max_new_tokens=NEW, streamer=streamer, custom_generate=custom)
        heard.append(streamer.heard)
    assert heard[0] == heard[1] == heard[2]
    assert heard[0][-1] == "end"
    assert len(heard[0]) == 1 + NEW + 1


def test_a_streamer_that_raises_cancels_and_the_next_call_is_fine() -> None:
    class Cancelling(Recording):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.heard) == 4:
                raise KeyboardInterrupt

    model, speculate = model_of("llama"), self_drafting("llama")
    with pytest.raises(KeyboardInterrupt):
        model.generate(**batch("llama", 1), max_new_tokens=NEW, streamer=Cancelling(), custom_generate=speculate)
    assert_as_plain(model, speculate, **batch("llama"), max_new_tokens=NEW)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_scores_and_logits_of_one_row_are_plain_ones(family: str) -> None:
    model = model_of(family)
    speculate = speculation("ngram") if family == "t5" else self_drafting(family)
    seen: list[list[int]] = []

    def by_scores(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        seen[-1].append(len(scores))
        return torch.tensor([bool(scores[-1][0, input_ids[0, -1]] < -1e9) or len(scores) > 9])

    found = []
    for custom in (None, speculate):
        seen.append([])
        found.append(
            model.generate(
                **batch(family, 1),
                max_new_tokens=NEW,
                repetition_penalty=1.4,
                eos_token_id=None,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                stopping_criteria=StoppingCriteriaList([by_scores]),
                custom_generate=custom,
            )
        )
    plain, own = found
    assert type(own) is type(plain)
    assert own.sequences.tolist() == plain.sequences.tolist()
    assert seen[0] == seen[1] == list(range(1, 11))
    for kind in ("scores", "logits"):
        assert len(own[kind]) == len(plain[kind]) == 10
        torch.testing.assert_close(torch.cat(own[kind]), torch.cat(plain[kind]), rtol=0, atol=2e-4)
    assert not torch.equal(own.scores[3], own.logits[3])


def test_a_dictionary_without_scores_is_for_any_batch() -> None:
    model = model_of("llama")
    options = {**batch("llama"), "max_new_tokens": NEW, "return_dict_in_generate": True}
    found = model.generate(**options, custom_generate=speculation("ngram"))
    assert found.sequences.tolist() == model.generate(**options).sequences.tolist()
    assert found.get("scores") is None


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_copies_of_a_prompt_stand_beside_it(family: str) -> None:
    model, inputs = model_of(family), batch(family)
    found = model.generate(
        **inputs,
        max_new_tokens=6,
        do_sample=True,
        top_k=1,
        num_return_sequences=2,
        custom_generate=speculation("ngram"),
    )
    plain = model.generate(**inputs, max_new_tokens=6)
    assert found.tolist() == plain.repeat_interleave(2, 0).tolist()


def test_a_named_draft_model_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import slimtier.hf_generate as home

    model_of("gpt2").save_pretrained(tmp_path)
    loads, real = [], home.load_model
    monkeypatch.setattr(home, "load_model", lambda *given: loads.append(given) or real(*given))
    speculate = slimtier.custom_generate(drafter="draft_model", draft_model=tmp_path)
    for _ in range(2):
        assert_as_plain(model_of("llama"), speculate, **batch("llama"), max_new_tokens=NEW)
    assert loads == [(str(tmp_path), torch.float32)]
    assert_as_plain(model_of("qwen3"), speculate, **batch("qwen3"), max_new_tokens=NEW)


def test_a_draft_model_with_more_padding_in_its_vocabulary(tmp_path: Path) -> None:
    target, draft = model_of("llama"), build(transformers.LlamaConfig(**{**COMMON, "vocab_size": VOCAB + 5}))
    speculate = slimtier.custom_generate(drafter="draft_model", draft_model=draft)
    with pytest.raises(VocabularyError, match=f"{VOCAB + 5} tokens"):
        target.generate(**batch("llama"), max_new_tokens=4, custom_generate=speculate)
    for name, model in (("draft", draft), ("target", target)):
        model.save_pretrained(tmp_path / name)
        small_tokenizer().save_pretrained(tmp_path / name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    speculate = slimtier.custom_generate(drafter="draft_model", draft_model=str(tmp_path / "draft"))
    assert_as_plain(loaded, speculate, **batch("llama"), max_new_tokens=NEW)


def test_lenient_is_only_ever_asked_for_by_name() -> None:
    model, draft = model_of("llama"), build(transformers.LlamaConfig(**{**COMMON, "num_hidden_layers": 1}))
    settings = {"drafter": "draft_model", "draft_model": draft}
    options = {**batch("llama"), "max_new_tokens": NEW}
    plain = assert_as_plain(model, slimtier.custom_generate(**settings), **options)
    lenient = slimtier.custom_generate(**settings, verifier="lenient", lenience=0.999)
    assert model.generate(**options, custom_generate=lenient).tolist() != plain.tolist()


def test_the_public_name_is_the_function_however_often_it_is_asked_for() -> None:
    first, second = slimtier.custom_generate, slimtier.custom_generate
    assert first is second
    assert callable(first)
    assert "custom_generate" in dir(slimtier)


def test_an_encoder_decoder_goes_on_from_decoder_tokens_and_given_states() -> None:
    model, inputs = model_of("t5"), batch("t5")
    start = torch.tensor([[0, 5, 6], [0, 7, 8], [0, 5, 9]])
    assert_as_plain(model, speculation("ngram"), **inputs, decoder_input_ids=start, max_new_tokens=NEW)
    with torch.no_grad():
        states = model.get_encoder()(**inputs)
        states.last_hidden_state = states.last_hidden_state * 0.5
    options = {"encoder_outputs": states, "attention_mask": inputs["attention_mask"], "max_new_tokens": NEW}
    changed = model.generate(**copy.deepcopy(options))
    assert model.generate(**options, custom_generate=speculation("ngram")).tolist() == changed.tolist()
    assert changed.tolist() != model.generate(**inputs, max_new_tokens=NEW).tolist()


def test_one_callable_serves_several_models() -> None:
    speculate = slimtier.custom_generate(drafter="ngram")
    for family in ("llama", "gpt2", "llama"):
        assert_as_plain(model_of(family), speculate, **batch(family), max_new_tokens=8)
    parts = speculate._parts
    assert_as_plain(model_of("llama"), speculate, **batch("llama"), max_new_tokens=8)
    assert speculate._parts is parts
    assert isinstance(parts.target, HfTarget)
    assert not parts.drafter._indexes
