"""From logits to a token."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from slimtier.errors import InputError, NonFiniteError
from slimtier.noise import Noise
from slimtier.sampling import is_greedy, needs_logits, probabilities, sample, target_token, validate
from slimtier.types import SamplingParams

NAN, INF = float("nan"), float("inf")
PLAIN = SamplingParams(temperature=1.0)


def sampled(**settings: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1.0, NAN, INF, "hot", None, True)),
        *(("top_p", value) for value in (0.0, -0.1, 1.1, NAN)),
        *(("min_p", value) for value in (-0.1, 1.1, NAN)),
        *(("top_k", value) for value in (-1, 1.5, True)),
        *(("no_repeat_ngram", value) for value in (-1, 2.0)),
        *(("repetition_penalty", value) for value in (0.0, -1.0, NAN, INF)),
        *(("presence_penalty", value) for value in (NAN, INF)),
        *(("frequency_penalty", value) for value in (NAN, -INF)),
        *(("logit_bias", value) for value in ({96: 1.0}, {-1: 1.0}, {"3": 1.0}, {3: NAN}, {3: INF}, {3: "x"})),
        *(("seed", value) for value in (1.5, "x", True)),
        ("coupling", "magic"),
        ("processors", ("x",)),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name) as caught:
        validate(sampled(**{name: value}), 96)
    assert "\n" not in str(caught.value)


def test_the_widest_meaningful_values_pass() -> None:
    validate(SamplingParams(), 96)
    validate(
        SamplingParams(
            temperature=100,
            top_k=10**9,
            top_p=1e-9,
            min_p=1.0,
            repetition_penalty=1e-3,
            presence_penalty=-2,
            frequency_penalty=2,
            logit_bias={0: -INF, 95: -100},
            seed=-(10**40),
            coupling="gumbel",
            processors=(lambda ids, logits: logits,),
        ),
        96,
    )


def test_what_is_greedy_and_what_needs_logits() -> None:
    assert [is_greedy(sampled(temperature=t)) for t in (0, 1e-45, 1e-5, 1.01e-5, 0.01)] == [True] * 3 + [False] * 2
    assert not needs_logits(SamplingParams(top_k=5, top_p=0.5, min_p=0.5))
    assert needs_logits(PLAIN)
    assert needs_logits(SamplingParams(logit_bias={1: 1.0}))
    assert needs_logits(SamplingParams(processors=(lambda ids, logits: logits,)))


def reference_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """transformers' own warpers, one after the other."""
    from transformers.generation import logits_process as reference

    scores = reference.TemperatureLogitsWarper(params.temperature)(None, logits[None])
    if params.top_k:
        scores = reference.TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1.0:
        scores = reference.TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p:
        scores = reference.MinPLogitsWarper(params.min_p)(None, scores)
    return scores.softmax(-1)[0]


@pytest.mark.parametrize("vocab_size", [1, 7, 300])
def test_filters_agree_with_transformers(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.3, 1.0, 3.0), (0, 1, 5, vocab_size + 10), (0.05, 0.8, 0.95, 1.0), (0.0, 0.2)
    ):
        params = sampled(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        logits = torch.randn(vocab_size, generator=generator) * 2
        torch.testing.assert_close(
            probabilities(logits, params), reference_probabilities(logits, params), rtol=1e-4, atol=1e-7
        )


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-5, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.8, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 8, 18])
def test_no_filter_leaves_nothing_and_nothing_is_nan(temperature: float, top_p: float, top_k: int) -> None:
    rows = (
        torch.randn(8, generator=torch.Generator().manual_seed(1)),
        torch.zeros(8),
        torch.tensor([6e4, -6e4, 6e4, 0, 0, 0, 0, 1], dtype=torch.float16),
        torch.tensor([-INF] * 7 + [1.0]),
        torch.tensor([3e38, -3e38] + [0.0] * 6),
    )
    for logits in rows:
        probs = probabilities(logits, sampled(temperature=temperature, top_p=top_p, top_k=top_k, min_p=0.1))
        assert probs.dtype == torch.float32
        assert bool((probs >= 0).all())
        assert float(probs.sum()) == pytest.approx(1.0, abs=1e-6)
        assert probs[int(logits.argmax())] > 0


def test_tiny_temperature_is_argmax_and_a_huge_top_k_is_off() -> None:
    logits = torch.tensor([1.0, 4.0, 4.0, 2.0])
    assert probabilities(logits, sampled(temperature=1e-5)).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert torch.equal(probabilities(logits, sampled(top_k=14)), probabilities(logits, PLAIN))


def test_ties_at_the_edge() -> None:
    flat = torch.zeros(8)
    assert (probabilities(flat, sampled(top_p=0.5)) > 0).tolist() == [True] * 4 + [False] * 4
    assert (probabilities(flat, sampled(top_k=3)) > 0).all()


def test_a_row_without_a_distribution_is_named() -> None:
    for params in (SamplingParams(), PLAIN, sampled(coupling="gumbel")):
        for bad in (NAN, INF):
            with pytest.raises(NonFiniteError, match="weights"):
                target_token(torch.tensor([0.0, bad, 1.0]), params, Noise(0), 0)
        with pytest.raises(NonFiniteError, match="banned"):
            target_token(torch.full((3,), -INF), params, Noise(0), 0)


def test_sampling_walks_the_cumulated_probabilities() -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    draws = (0.0, 0.2499, 0.25, 0.7499, 0.75, math.nextafter(1.0, 0.0), 1.0)
    assert [sample(probs, draw) for draw in draws] == [1, 1, 3, 3, 4, 4, 4]
    assert [sample(probs * 1e-30, draw) for draw in draws] == [1, 1, 3, 3, 4, 4, 4]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        probs = torch.rand(2000, generator=generator) ** 8 * (torch.rand(2000, generator=generator) < 0.3)
        edges = (probs.double().cumsum(0) / probs.double().sum())[::100].tolist()
        for draw in (0.0, *edges, 1.0 - 2.0**-53):
            assert probs[sample(probs, draw)] > 0


@pytest.mark.parametrize("bad", [[0.0, 0.0], [NAN, 1.0], [INF, 1.0]])
def test_sampling_from_no_distribution_is_named(bad: list[float]) -> None:
    with pytest.raises(NonFiniteError, match="sum to"):
        sample(torch.tensor(bad), 0.5)


def test_target_token_takes_the_lowest_id_of_a_tie() -> None:
    assert target_token(torch.tensor([1.0, 3.0, 3.0]), SamplingParams(), Noise(0), 0) == 1


def test_seeds_change_what_is_drawn_and_positions_do_under_gumbel_coupling() -> None:
    logits = torch.zeros(64)
    assert len({target_token(logits, PLAIN, Noise(seed), 0) for seed in range(20)}) > 5
    params = sampled(coupling="gumbel")
    assert len({target_token(logits, params, Noise(0), position) for position in range(20)}) > 5
    assert len({target_token(logits, params, Noise(0, stream), 3) for stream in "abc"}) == 1


def test_gumbel_coupling_never_takes_a_filtered_token() -> None:
    logits = torch.arange(16.0) / 8
    drawn = {target_token(logits, sampled(coupling="gumbel", top_k=3), Noise(0), position) for position in range(300)}
    assert drawn == {13, 14, 15}
