"""Sampling through `custom_generate`: the distribution is that of plain generate, and a seed repeats an answer."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers
from scipy.stats import chisquare

import slimtier
from tests.generating import batch, model_of, speculation
from tests.models.hf_models import COMMON, build


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
