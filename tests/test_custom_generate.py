"""`model.generate(custom_generate=slimtier.custom_generate(...))` against the same call without it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from scipy.stats import chisquare
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import slimtier
from slimtier.errors import ConfigError, InputError, VocabularyError
from slimtier.models.hf import HfTarget
from slimtier.models.hf_load import decoder_layers
from tests.models.hf_models import COMMON, CONFIGS, VOCAB, build, one_thread, sequence
from tests.small_tokenizer import small_tokenizer

FAMILIES = ["llama", "qwen3", "gemma3", "mixtral", "gpt2", "t5"]
NEW = 16
EXTRA_SETTINGS: dict[str, dict[str, Any]] = {"layer_skip": {"skip_layers": [1]}}


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    with one_thread():
        yield


@functools.cache
def model_of(family: str) -> Any:
    config = CONFIGS[family]()
    if family == "t5":  # transformers' own generate has caches for as many layers as the encoder has
        config.num_decoder_layers = config.num_layers
    return build(config)


def batch(family: str, rows: int = 3) -> dict[str, torch.Tensor]:
    """Prompts of unequal length, of which the second repeats itself; padded on the left (an encoder's on the right)."""
    texts = [sequence(7, 4), [9, 8, 7, 6, 9, 8, 7, 6, 9, 8], sequence(3, 5)][:rows]
    length = max(len(text) for text in texts)
    left = CONFIGS[family]().is_encoder_decoder is False
    ids, mask = [], []
    for text in texts:
        fill = [0] * (length - len(text))
        ids.append([*fill, *text] if left else [*text, *fill])
        mask.append([0] * len(fill) + [1] * len(text) if left else [1] * len(text) + [0] * len(fill))
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@functools.cache
def speculation(drafter: str, k: int = 4) -> Any:
    """A callable that many tests share: its parts are made once for a model."""
    return slimtier.custom_generate(drafter=drafter, num_speculative_tokens=k, **EXTRA_SETTINGS.get(drafter, {}))


@functools.cache
def self_drafting(family: str, k: int = 4) -> Any:
    """A draft that is nearly always right: blocks are accepted whole, and ends fall inside them."""
    return slimtier.custom_generate(drafter="draft_model", draft_model=model_of(family), num_speculative_tokens=k)


def assert_as_plain(model: Any, speculate: Any, **options: Any) -> torch.Tensor:
    plain = model.generate(**options)
    found = model.generate(**options, custom_generate=speculate)
    assert found.tolist() == plain.tolist()
    assert found.dtype == plain.dtype
    return plain


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


@functools.cache
def small_vocabulary(seed: int) -> Any:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlamaConfig(
        **{**COMMON, **shape, "vocab_size": 6, "num_key_value_heads": 1, "eos_token_id": 5, "pad_token_id": 5}
    )
    model = build(config)
    with torch.no_grad():
        model.lm_head.weight.copy_(0.4 * torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)))
    return model


def expected_pairs(model: Any, prompt: list[int], **options: Any) -> torch.Tensor:
    """The probabilities [6, 6] of two sampled tokens, one forward of the model each; the end token is followed by
    itself as padding."""

    def row(ids: list[int]) -> torch.Tensor:
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=1, return_dict_in_generate=True, output_scores=True, **options
        )
        return out.scores[0][0].softmax(-1)

    first = row(prompt)
    ended = torch.eye(6)[5]
    return torch.stack([first[t] * (ended if t == 5 else row([*prompt, t])) for t in range(6)])


WARPERS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "cold": {"temperature": 0.6, "top_k": 4},
    "hot": {"temperature": 1.8, "top_p": 0.85, "top_k": 0},
    "min_p": {"min_p": 0.12, "top_k": 0},
    "typical": {"typical_p": 0.7, "top_k": 0, "repetition_penalty": 1.2},
}


def sampled_pairs(model: Any, speculate: Any, prompt: list[int], draws: int, **options: Any) -> torch.Tensor:
    """How often each of the 36 pairs was drawn."""
    torch.manual_seed(7)
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=2, num_return_sequences=draws, custom_generate=speculate, **options)
    pairs = out[:, len(prompt) :]
    assert pairs.shape == (draws, 2)
    return torch.bincount(pairs[:, 0] * 6 + pairs[:, 1], minlength=36).double()


@pytest.mark.parametrize(("drafter", "warpers"), [*(("draft_model", name) for name in WARPERS), ("ngram", "hot")])
def test_sampling_has_the_distribution_of_generate(drafter: str, warpers: str) -> None:
    model, prompt, draws = small_vocabulary(0), [1, 2, 3, 1, 2], 500
    draft = {"draft_model": small_vocabulary(1)} if drafter == "draft_model" else {}
    speculate = slimtier.custom_generate(drafter=drafter, num_speculative_tokens=3, **draft)
    counts = sampled_pairs(model, speculate, prompt, draws, do_sample=True, **WARPERS[warpers])
    expected = expected_pairs(model, prompt, do_sample=True, **WARPERS[warpers]).flatten().double()
    assert counts[expected == 0].sum() == 0
    known = expected > 0
    wanted = expected[known] / expected.sum() * draws
    assert chisquare(counts[known].numpy(), wanted.numpy()).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_sampling_is_near_the_distribution_of_generate_in_many_draws(drafter: str) -> None:
    model, prompt, draws = small_vocabulary(0), [1, 2, 3, 1, 2], 20_000
    draft = {"draft_model": small_vocabulary(1)} if drafter == "draft_model" else {}
    speculate = slimtier.custom_generate(drafter=drafter, num_speculative_tokens=3, **draft)
    options = {"do_sample": True, **WARPERS["hot"]}
    counts = sampled_pairs(model, speculate, prompt, draws, **options)
    expected = expected_pairs(model, prompt, **options).flatten().double()
    assert float((counts / draws - expected).abs().sum() / 2) < 0.02


def test_a_seed_repeats_a_sampled_answer_and_greedy_takes_no_random_number() -> None:
    model, options = model_of("llama"), {"do_sample": True, "max_new_tokens": 8, "temperature": 2.0}
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append(model.generate(**batch("llama"), **options, custom_generate=speculation("ngram")).tolist())
    assert answers[0] == answers[1] != answers[2]
    again = model.generate(**batch("llama"), **options, custom_generate=speculation("ngram")).tolist()
    assert again != answers[2]
    copies = model.generate(**batch("llama", 1), **options, num_return_sequences=3, custom_generate=speculation("none"))
    assert len({tuple(row) for row in copies.tolist()}) == 3
    before = torch.get_rng_state()
    model.generate(**batch("llama"), max_new_tokens=4, custom_generate=speculation("ngram"))
    assert torch.equal(torch.get_rng_state(), before)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafter": "ngrm"}, "did you mean 'ngram'"),
        ({"verifier": "lenient"}, "needs the setting lenience"),
        ({"drafter": "draft_model"}, "needs the setting draft_model"),
        ({"drafter": "draft_model", "draft_model": 5}, "draft_model is 5"),
        ({"min_ngrm": 2}, "did you mean 'min_ngram'"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
    ],
)
def test_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slimtier.custom_generate(**settings)


def mask(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "beam search .set by num_beams"),
        ({"num_beams": 2, "do_sample": True}, "beam sample .set by num_beams"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"assistant_model": "itself"}, "assistant_model"),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
        (
            {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=2), "do_sample": True},
            "SynthID",
        ),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
        ({"cache": transformers.DynamicCache()}, "was given a cache"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states"),
        ({"return_dict_in_generate": True, "output_scores": True}, "one row, and there are 2"),
        ({"return_dict_in_generate": True, "output_logits": True}, "one row, and there are 2"),
        ({"max_new_tokens": 61}, "5 tokens and may grow by 61, and the model holds 64: .* at most 60"),
        ({"attention_mask": mask([1] * 5, [1, 0, 1, 1, 1])}, "attention_mask of row 1"),
        ({"attention_mask": mask([1] * 5, [1, 1, 1, 0, 0])}, "attention_mask of row 1"),
        ({"attention_mask": mask([1] * 5, [0] * 5)}, "attention_mask of row 1"),
        ({"position_ids": torch.tensor([[3, 4, 5, 6, 7]] * 2)}, "position_ids of row 0"),
        ({"inputs_embeds": torch.zeros(2, 5, 32)}, "inputs_embeds"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    model, calls = model_of("llama"), []
    given = {name: model if value == "itself" else value for name, value in options.items()}
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises((ConfigError, InputError), match=message) as caught:
            model.generate(
                **{"input_ids": torch.full((2, 5), 9), "max_new_tokens": 4, **given},
                custom_generate=slimtier.custom_generate(drafter="ngram"),
            )
        assert "\n" not in str(caught.value)
        assert len(calls) <= 10  # nothing but the check of the wrapped model
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": mask([1] * 5, [0, 1, 1, 1, 1])}, "attention_mask of the encoder"),
        ({"decoder_input_ids": mask([0, 5], [0, 5]), "decoder_attention_mask": mask([1, 1], [0, 1])}, "decoder_attent"),
    ],
)
def test_an_encoder_decoder_refuses_masks_it_cannot_cut(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_of("t5").generate(
            torch.full((2, 5), 9), max_new_tokens=4, custom_generate=speculation("ngram"), **options
        )


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


def test_drafters_of_a_decoder_are_refused_for_an_encoder_decoder() -> None:
    for settings in ({"drafter": "layer_skip", "skip_layers": 1}, {"drafter": "draft_model", "draft_model": "x"}):
        speculate = slimtier.custom_generate(**settings)
        with pytest.raises(ConfigError, match="encoder-decoder"):
            model_of("t5").generate(torch.full((1, 5), 9), max_new_tokens=4, custom_generate=speculate)


def test_a_model_in_training_mode_is_refused_and_left_so() -> None:
    model, speculate = build(CONFIGS["llama"]()).train(), slimtier.custom_generate(drafter="ngram")
    with pytest.raises(InputError, match=r"call model\.eval"):
        model.generate(**batch("llama"), max_new_tokens=4, custom_generate=speculate)
    assert model.training
    draft = slimtier.custom_generate(drafter="draft_model", draft_model=model)
    with pytest.raises(InputError, match=r"call draft_model\.eval"):
        model_of("llama").generate(**batch("llama"), max_new_tokens=4, custom_generate=draft)


def test_one_callable_serves_several_models() -> None:
    speculate = slimtier.custom_generate(drafter="ngram")
    for family in ("llama", "gpt2", "llama"):
        assert_as_plain(model_of(family), speculate, **batch(family), max_new_tokens=8)
    parts = speculate._parts
    assert_as_plain(model_of("llama"), speculate, **batch("llama"), max_new_tokens=8)
    assert speculate._parts is parts
    assert isinstance(parts.target, HfTarget)
    assert not parts.drafter._indexes
