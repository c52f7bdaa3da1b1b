"""The hf runtime against the wrapped model's own forward over the whole sequence, for many families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicLayer

from slimtier.errors import InputError, NonFiniteError, UnsupportedError
from slimtier.models.hf import HfTarget
from slimtier.models.hf_cache import RowLayer
from tests.models.hf_models import (
    COMMON,
    CONFIGS,
    ENCODER_TOKENS,
    FAMILIES,
    LAYERS,
    VOCAB,
    assert_close,
    begin,
    build,
    num_hooks,
    one_thread,
    own_logits,
    sequence,
    target_of,
)


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_any_chunking_gives_the_models_own_logits(family: str) -> None:
    target, tokens = target_of(family), sequence(20, 2)
    expected = own_logits(target.model, tokens)
    for chunks in ([20], [1] * 20, [5, 1, 2, 7, 4, 1], [7, 13]):  # the window of 8 is crossed in different ways
        cache, start, hidden = begin(target, 1), 0, []
        for chunk in chunks:
            hidden.append(target.forward(tokens[start : start + chunk], cache, [chunk])[0])
            start += chunk
        assert cache.lengths == [20]
        assert_close(target.head(torch.cat(hidden)), expected)
    assert target.head(torch.cat(hidden), "argmax") == expected.argmax(-1).tolist()
    ids, best = target.head(torch.cat(hidden), "best two")
    assert ids == expected.argmax(-1).tolist()
    assert_close(best, expected.topk(2).values.T)


@pytest.mark.parametrize("family", FAMILIES)
def test_crop_brings_back_an_earlier_state_at_any_length(family: str) -> None:
    target, tokens = target_of(family), sequence(24, 3)
    expected = own_logits(target.model, tokens)
    cache = begin(target, 1)
    for kept in (3, 6, 7, 8, 9, 15, 0, 12):  # before, at and past the window; back to nothing
        start = min(kept, cache.lengths[0])
        cache.crop([start])
        hidden, _ = target.forward(tokens[start : kept + 4], cache, [kept + 4 - start])
        assert_close(target.head(hidden), expected[start : kept + 4])
        target.forward(sequence(5, kept), cache, [5])  # a wrong draft
        cache.crop([kept + 4])


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_rows_keep_and_fork(family: str) -> None:
    target = target_of(family)
    texts = [sequence(n, seed) for seed, n in enumerate((13, 4, 9))]
    cache = begin(target, 3)
    hidden, _ = target.forward(texts[0] + texts[2], cache, [13, 0, 9])
    assert_close(
        target.head(hidden), torch.cat([own_logits(target.model, texts[0]), own_logits(target.model, texts[2], 2)])
    )
    hidden, _ = target.forward(texts[1], cache, [0, 4, 0])
    assert_close(target.head(hidden), own_logits(target.model, texts[1], 1))
    cache.keep([2, 1, 2])
    assert cache.lengths == [9, 4, 9]
    cache.crop([8, 4, 9])
    extra = [sequence(3, seed) for seed in (10, 11, 12)]
    hidden, _ = target.forward([*extra[0], *extra[1], *extra[2]], cache, [3, 3, 3])
    grown = [(texts[2][:8] + extra[0], 2), (texts[1] + extra[1], 1), (texts[2] + extra[2], 2)]
    assert_close(target.head(hidden), torch.cat([own_logits(target.model, text, row)[-3:] for text, row in grown]))


@pytest.mark.parametrize("family", FAMILIES)
def test_capture_gives_the_residual_stream_after_the_layers(family: str) -> None:
    target, tokens = target_of(family), sequence(12, 4)
    arguments = {"input_ids": torch.tensor([tokens]), "output_hidden_states": True}
    if target.is_encoder_decoder:
        arguments |= {"input_ids": torch.tensor([ENCODER_TOKENS[0]]), "decoder_input_ids": torch.tensor([tokens])}
    with torch.inference_mode():
        outputs = target.model(**arguments)
    states = outputs.decoder_hidden_states if target.is_encoder_decoder else outputs.hidden_states
    cache = begin(target, 1)
    hooks = num_hooks(target)
    _, first = target.forward(tokens[:7], cache, [7], capture=(1, 0))
    hidden, second = target.forward(tokens[7:], cache, [5], capture=(1, 0))
    for got, layer in zip(zip(first, second, strict=True), (1, 0), strict=True):
        assert_close(torch.cat(got), states[layer + 1][0])  # states[0] is the embedding
    assert_close(hidden, states[LAYERS][0, 7:])  # transformers gives the last one after the final norm
    assert num_hooks(target) == hooks
    hidden, (last,) = target.forward(tokens[3:7], cache, [4], capture=[LAYERS - 1])
    norm = next(m for n, m in target._decoder.named_children() if n in ("norm", "ln_f", "final_layer_norm"))
    with torch.inference_mode():
        assert_close(norm(last), hidden)


def test_no_tokens() -> None:
    target = target_of("llama")
    cache = begin(target, 2)
    hidden, features = target.forward([], cache, [0, 0], capture=(1,))
    assert hidden.shape == features[0].shape == (0, 32)
    assert target.head(hidden).shape == (0, VOCAB)
    assert target.head(hidden, "argmax") == []
    assert begin(target, 0).lengths == []


def test_what_the_target_tells_of_itself() -> None:
    info = target_of("qwen2").info
    assert (info.name, info.runtime, info.precision, info.exact) == ("qwen2", "hf", "fp32", False)
    assert (info.vocab_size, info.hidden_size, info.num_layers, info.max_positions) == (VOCAB, 32, LAYERS, 64)
    assert info.eos_token_ids == (2,)
    tied = sum(p.nbytes for p in target_of("qwen2").model.parameters())
    assert info.weight_bytes == tied  # parameters() names a tied tensor once
    untied = sum(p.nbytes for p in target_of("llama").model.parameters())
    assert target_of("llama").info.weight_bytes == untied - VOCAB * 32 * 4
    moe = target_of("mixtral").model
    experts = sum(p.nbytes for n, p in moe.named_parameters() if ".experts." in n)
    whole = sum(p.nbytes for p in moe.parameters()) - VOCAB * 32 * 4
    assert target_of("mixtral").info.weight_bytes == whole - experts // 2  # 2 of 4 experts
    model = build(CONFIGS["llama"]())
    model.generation_config.eos_token_id = [2, 5]
    assert HfTarget(model).info.eos_token_ids == (2, 5)
    t5 = target_of("t5")
    assert (t5.is_encoder_decoder, t5.decoder_start_token_id) == (True, 0)


def test_bf16_and_padded_embeddings() -> None:
    model = build(CONFIGS["llama"]())
    model.resize_token_embeddings(80)
    target = HfTarget(model.to(torch.bfloat16).train())
    assert (target.info.precision, target.info.vocab_size, model.training) == ("bf16", 80, False)
    hidden, _ = target.forward([79, 3], begin(target, 1), [2])
    assert hidden.dtype == torch.bfloat16
    assert target.head(hidden).dtype == torch.float32
    assert not target.head(hidden).requires_grad


def test_the_lowest_id_wins_a_tie() -> None:
    model = build(CONFIGS["llama"]())
    with torch.no_grad():
        model.lm_head.weight[11:] = model.lm_head.weight[10]
        model.lm_head.weight[:10] = 0
    target = HfTarget(model)
    hidden, _ = target.forward([5, 6, 7, 8], begin(target, 1), [4])
    positive = target.head(hidden)[:, 10] > 0
    assert target.head(hidden, "argmax") == [10 if up else 0 for up in positive.tolist()]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    for family in ("llama", "gemma2"):  # Gemma 2's soft cap makes infinite logits finite again
        hidden = torch.ones(3, 32)
        hidden[1, 4] = value
        with pytest.raises(NonFiniteError, match="row 1"):
            target_of(family).head(hidden, "argmax")
    model = build(CONFIGS["llama"]())
    with torch.no_grad():
        model.model.norm.weight[0] = value
    with pytest.raises(NonFiniteError):
        HfTarget(model)


def test_bad_requests() -> None:
    llama, t5 = target_of("llama"), target_of("t5")
    cache = llama.begin(2, 6)
    for tokens, lengths, options, words in [
        ([1, 2], [1, 0], {}, "sum to the number of tokens"),
        ([1], [1], {}, "one length a row"),
        ([1, VOCAB], [1, 1], {}, f"token id {VOCAB}"),
        ([-1], [1, 0], {}, "token id -1"),
        ([1] * 7, [0, 7], {}, "may hold 6"),
        ([1], [1, 0], {"capture": (LAYERS,)}, "cannot be captured"),
    ]:
        with pytest.raises(InputError, match=words):
            llama.forward(tokens, cache, lengths, **options)
        assert cache.lengths == [0, 0]
    with pytest.raises(InputError, match="may hold 64"):
        llama.forward([1] * 65, llama.begin(1, 100), [65])
    with pytest.raises(InputError, match="no encoder"):
        llama.begin(1, 6, [[1]])
    for inputs in (None, [[1]], [[1], []]):
        with pytest.raises(InputError, match="encoder inputs"):
            t5.begin(2, 6, inputs)
    llama.forward([1, 2, 3], cache, [2, 1])
    for lengths in ([3, 1], [-1, 1], [1]):
        with pytest.raises(InputError):
            cache.crop(lengths)
    with pytest.raises(InputError, match="no row 2"):
        cache.keep([0, 2])
    assert cache.lengths == [2, 1]


def test_a_state_that_cannot_be_rewound_is_refused_by_name() -> None:
    small = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
    configs = [
        transformers.MambaConfig(**small, state_size=4),
        transformers.RwkvConfig(**small, attention_hidden_size=32, bos_token_id=0, eos_token_id=0),
        transformers.RecurrentGemmaConfig(**COMMON | {"num_key_value_heads": 1}, lru_width=32, attention_window_size=8),
        transformers.Lfm2Config(**COMMON, layer_types=["conv", "full_attention", "conv"]),
    ]
    for config in configs:
        with pytest.raises(UnsupportedError, match=f"^{config.model_type} .*rewound"):
            HfTarget(transformers.AutoModelForCausalLM.from_config(config))

    model = build(CONFIGS["llama"]())
    model._is_stateful = True  # what transformers says of a model whose cache it cannot crop
    with pytest.raises(UnsupportedError, match="rewound"):
        HfTarget(model)


def test_a_layer_counts_its_tokens_as_transformers_does() -> None:
    ours, theirs = RowLayer(), DynamicLayer()
    for length in (3, 1, 4):
        states = torch.randn(1, 2, length, 4)
        for got, expected in zip(ours.update(states, -states), theirs.update(states, -states), strict=True):
            assert torch.equal(got, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(2) == theirs.get_mask_sizes(2)
    ours.rewind(5)
    assert (ours.get_seq_length(), ours.keys.shape[-2], ours.values.shape[-2]) == (5, 5, 5)


def test_a_model_that_computes_otherwise_in_pieces_is_refused() -> None:
    model = build(CONFIGS["llama"]())
    own = model.model.layers[0].forward

    def looks_ahead(hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        return own(hidden_states + hidden_states.mean(1, keepdim=True), **kwargs)

    model.model.layers[0].forward = looks_ahead
    with pytest.raises(UnsupportedError, match="differ from the model's own"):
        HfTarget(model, name="odd")
    with pytest.raises(UnsupportedError, match="load a causal LM"):
        HfTarget(transformers.AutoModel.from_config(CONFIGS["llama"]()))
