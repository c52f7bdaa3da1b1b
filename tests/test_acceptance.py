"""The rule that keeps or replaces a drafted token: worked out exactly, and by 20,000 draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from slimtier import sampling
from slimtier.noise import Noise
from slimtier.sampling import accept_probability, choose, judge, probabilities, residual, sample, target_token, without
from slimtier.types import SamplingParams

DRAWS = 20_000
TARGET = torch.tensor([1.2, -0.3, 0.9, 0.0, -1.5, 0.7])
NAN, INF = float("nan"), float("inf")

Propose = Callable[[Noise, int], tuple[int, torch.Tensor | None]]


def sampled(temperature: float, **settings: object) -> SamplingParams:
    return SamplingParams(temperature=temperature, **settings)  # type: ignore[arg-type]


SETTINGS = {
    "T0.5": sampled(0.5),
    "T1": sampled(1.0),
    "T2": sampled(2.0),
    "top_k": sampled(1.0, top_k=3),
    "top_p": sampled(2.0, top_p=0.8),
    "min_p": sampled(0.5, min_p=0.1),
    "all": sampled(2.0, top_k=5, top_p=0.9, min_p=0.2),
}
DRAFTS = {
    "same": TARGET,
    "near": TARGET + torch.tensor([0.3, -0.2, 0.0, 0.4, 0.1, -0.6]),
    "far": -TARGET,
    "disjoint": torch.tensor([-INF, -INF, -INF, -INF, 0.0, -INF]),
    "one-hot": None,
}


def draft_distribution(name: str, params: SamplingParams) -> torch.Tensor | None:
    logits = DRAFTS[name]
    return None if logits is None else probabilities(logits, SamplingParams(temperature=params.temperature))


def exact_output(target_probs: torch.Tensor, draft_probs: torch.Tensor | None, drafted: int = 0) -> torch.Tensor:
    """The distribution of the output token: the sum over drafted tokens of what the rule makes of each."""
    output = torch.zeros_like(target_probs)
    one_hot = torch.zeros_like(target_probs).index_fill_(0, torch.tensor(drafted), 1.0)
    certain = draft_probs is None
    source = one_hot if draft_probs is None else draft_probs
    for token, chance in enumerate(source.tolist()):
        if chance > 0.0:
            kept = accept_probability(float(target_probs[token]), chance)
            rest = without(target_probs, token) if certain else residual(target_probs, source)
            output[token] += chance * kept
            output += chance * (1.0 - kept) * rest
    return output


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_rule_gives_the_target_distribution_exactly(setting: str, draft: str) -> None:
    params = SETTINGS[setting]
    target_probs = probabilities(TARGET, params)
    for drafted in range(len(TARGET)):
        output = exact_output(target_probs, draft_distribution(draft, params), drafted)
        torch.testing.assert_close(output, target_probs, rtol=0, atol=1e-6)


def counts_of(params: SamplingParams, propose: Propose, draws: int = DRAWS) -> np.ndarray:
    """How often each token comes out of `judge`; every draw stands at a position of its own."""
    verifier, drafter = Noise(11, "verifier"), Noise(11, "drafter")
    counts = np.zeros(len(TARGET), dtype=int)
    for position in range(draws):
        drafted, draft_probs = propose(drafter, position)
        token, kept = judge(drafted, draft_probs, TARGET, params, verifier, position)
        assert not kept or token == drafted
        counts[token] += 1
    return counts


def total_variation(counts: np.ndarray, expected: torch.Tensor) -> float:
    return float(np.abs(counts / counts.sum() - expected.double().numpy()).sum() / 2)


def assert_follows(counts: np.ndarray, expected: torch.Tensor) -> None:
    possible = expected.numpy() > 0
    assert counts[~possible].sum() == 0, "a token that the target cannot produce"
    assert total_variation(counts, expected) < 0.02
    wanted = expected.double().numpy()[possible]
    assert stats.chisquare(counts[possible], counts.sum() * wanted / wanted.sum()).pvalue > 1e-3


def proposer(draft: str, params: SamplingParams, drafted: int = 2) -> Propose:
    draft_probs = draft_distribution(draft, params)

    def propose(noise: Noise, position: int) -> tuple[int, torch.Tensor | None]:
        if draft_probs is None:
            return drafted, None
        return choose(draft_probs, params, noise, position), draft_probs

    return propose


FAST = {("T1", "near"), ("T2", "one-hot"), ("top_p", "far"), ("min_p", "disjoint")}
GRID = [
    pytest.param(setting, draft, marks=() if (setting, draft) in FAST else pytest.mark.slow)
    for setting, draft in itertools.product(SETTINGS, DRAFTS)
]


@pytest.mark.parametrize(("setting", "draft"), GRID)
def test_twenty_thousand_draws_follow_the_target(setting: str, draft: str) -> None:
    params = SETTINGS[setting]
    assert_follows(counts_of(params, proposer(draft, params)), probabilities(TARGET, params))


@pytest.mark.parametrize(
    "setting", [pytest.param(name, marks=() if name == "T1" else pytest.mark.slow) for name in SETTINGS]
)
def test_twenty_thousand_gumbel_tokens_follow_the_target(setting: str) -> None:
    """What is drafted makes no difference here, as the next test shows, so one draft stands for all."""
    params = replace(SETTINGS[setting], coupling="gumbel")
    counts = counts_of(params, lambda noise, position: (2, None))
    assert_follows(counts, probabilities(TARGET, params))


def test_gumbel_coupling_gives_the_plain_tokens_whatever_is_drafted() -> None:
    params = sampled(1.0, coupling="gumbel")
    plain = [target_token(TARGET, params, Noise(3, "other"), position) for position in range(200)]
    for draft in DRAFTS:
        propose = proposer(draft, params)
        noise = Noise(3, "drafter")
        judged = [
            judge(*propose(noise, position), TARGET, params, Noise(3, "verifier"), position) for position in range(200)
        ]
        assert [token for token, _ in judged] == plain
    kept = [judge(token, None, TARGET, params, Noise(3), position)[1] for position, token in enumerate(plain)]
    assert all(kept)


# Planted faults: the checks above must notice each of them.


@pytest.mark.parametrize("fault", ["top_k", "argmax", "temperature"])
def test_a_drafter_that_reports_what_it_did_not_draw_from_is_noticed(fault: str) -> None:
    """The draft is drawn from a processed distribution and the raw softmax is reported."""
    params = sampled(1.0)
    logits = DRAFTS["near"]
    assert logits is not None
    raw = probabilities(logits, params)
    really = {
        "top_k": probabilities(logits, sampled(1.0, top_k=2)),
        "argmax": probabilities(logits, SamplingParams()),
        "temperature": probabilities(logits, sampled(0.5)),
    }[fault]
    lying = counts_of(params, lambda noise, position: (sample(really, noise.uniform()), raw), 5000)
    honest = counts_of(params, lambda noise, position: (sample(really, noise.uniform()), really), DRAWS)
    assert total_variation(lying, probabilities(TARGET, params)) > 0.02
    assert_follows(honest, probabilities(TARGET, params))


def test_replacing_from_the_target_instead_of_the_residual_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "residual", lambda target_probs, draft_probs: target_probs)
    monkeypatch.setattr(sampling, "without", lambda target_probs, token: target_probs)
    params = sampled(1.0)
    for draft in ("near", "one-hot"):
        counts = counts_of(params, proposer(draft, params), 5000)
        assert total_variation(counts, probabilities(TARGET, params)) > 0.02


# Zero and non-finite residuals.


def test_equal_distributions_always_accept_and_leave_the_target_as_residual() -> None:
    probs = probabilities(TARGET, sampled(1.0))
    assert all(accept_probability(chance, chance) == 1.0 for chance in probs.tolist())
    assert torch.equal(residual(probs, probs), probs)


def test_a_token_the_target_cannot_produce_is_always_replaced() -> None:
    target_probs = torch.tensor([0.0, 0.5, 0.5])
    draft_probs = torch.tensor([1.0, 0.0, 0.0])
    assert accept_probability(0.0, 1.0) == accept_probability(0.0, 0.0) == 0.0
    assert torch.equal(residual(target_probs, draft_probs), target_probs)
    assert torch.equal(without(target_probs, 0), target_probs)
    logits = target_probs.log()
    judged = {
        judge(0, probs, logits, sampled(1.0), Noise(seed), 0) for seed in range(50) for probs in (None, draft_probs)
    }
    assert judged == {(1, False), (2, False)}


def test_a_certain_target() -> None:
    one_hot = torch.tensor([0.0, 1.0, 0.0])
    assert accept_probability(1.0, 0.3) == 1.0
    assert torch.equal(residual(one_hot, torch.tensor([0.3, 0.3, 0.4])), one_hot)
    assert torch.equal(without(one_hot, 1), one_hot)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_draft_distribution_that_is_not_one_leaves_the_target(bad: float) -> None:
    target_probs = torch.tensor([0.2, 0.3, 0.5])
    rest = residual(target_probs, torch.tensor([bad, 0.5, 0.5]))
    assert bool(torch.isfinite(rest).all())
    assert float(rest.sum()) == pytest.approx(1.0)


# Lenience.


def test_lenience_widens_acceptance_as_the_papers_have_it() -> None:
    assert accept_probability(0.2, 0.8) == pytest.approx(0.25)
    assert accept_probability(0.2, 0.8, lenience=0.5) == pytest.approx(0.5)
    assert accept_probability(0.2, 0.8, lenience=0.9) == 1.0


def test_greedy_lenience_keeps_what_is_near_the_argmax() -> None:
    logits = torch.tensor([0.6, 0.4, 1e-9]).log()
    greedy = SamplingParams()
    assert judge(1, None, logits, greedy, Noise(0), 0, lenience=0.5) == (1, True)
    assert judge(1, None, logits, greedy, Noise(0), 0, lenience=0.2) == (0, False)
    assert judge(1, None, logits, greedy, Noise(0), 0) == (0, False)
    assert judge(2, None, logits, greedy, Noise(0), 0, lenience=0.9) == (0, False)
    tie = torch.tensor([1.0, 1.0])
    assert judge(1, None, tie, greedy, Noise(0), 0) == (0, False), "lossless is the lowest id, also at a tie"
