"""Speculative cascades against the paper's formulas, written down once more without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from slimtier.drafters.model import ModelDrafter
from slimtier.engine import Engine
from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.noise import Noise
from slimtier.registry import VERIFIERS, check_settings
from slimtier.result import Result
from slimtier.sampling import process, sample
from slimtier.types import Draft, Route, SamplingParams, Verdict
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.cascade import CascadeVerifier, at_temperature_1
from slimtier.verifiers.cascade_rules import RULES, TARGET_RULES, CascadeRule
from slimtier.verifiers.lenient import LenientVerifier
from tests.stubs import ScriptedDrafter, StubTarget, seeded_normal, speculate, wrong

Probs = list[float]
DRAFT_RULES = tuple(rule for rule in RULES if rule not in TARGET_RULES)
TARGET_LOGITS = torch.tensor([0.9, 1.0, 0.2, -0.6, -1.5])
DRAFT_LOGITS = torch.tensor([1.4, 0.1, 0.7, -0.2, -1.0])
# at which a rule keeps some of what DRAFT_LOGITS draws, so that the output is far from the target's
ALPHAS = {"chow": 0.6, "diff": 0.0, "opt": 0.1, "token_v1": 0.1, "token_v2": 0.05, "token_v3": 0.6}
# at which it would decide otherwise with gates at temperature 0.5
COLD_ALPHAS = {"chow": 0.4, "diff": -0.2, "opt": -0.45, "token_v1": 0.2, "token_v2": 0.05, "token_v3": 0.6}
# at which a rule keeps nothing; there is no such alpha for token_v3, and 1 keeps everything
NEVER = {"chow": 0.0, "diff": -1.0, "opt": -1.5, "token_v1": -1.0, "token_v2": -1.0}


def naive_kept(rule: str, alpha: float, p: Probs, q: Probs, p1: Probs, q1: Probs) -> list[bool]:
    """Which tokens the rule keeps: p is the drafter, q the target, p1 and q1 the same at temperature 1."""
    variation = sum(max(0.0, a - b) for a, b in zip(p, q, strict=True))
    kept = []
    for v in range(len(p)):
        says = {
            "chow": max(p1) >= 1 - alpha,
            "diff": max(p1) >= max(q1) - alpha,
            "opt": max(p1) >= max(q1) - alpha * variation,
            "token_v1": p1[v] >= max(q1) - alpha,
            "token_v2": q1[v] >= max(q1) - alpha,
            "token_v3": q1[v] >= max(q1) * (1 - alpha),
        }
        kept.append(says[rule])
    return kept


def naive_output(rule: str, alpha: float, p: Probs, q: Probs, p1: Probs, q1: Probs) -> Probs:
    kept = naive_kept(rule, alpha, p, q, p1, q1)
    deferred = sum(p[v] for v in range(len(p)) if not kept[v])
    return [(p[v] if kept[v] else 0.0) + deferred * q[v] for v in range(len(p))]


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> Probs:
    return [float(prob) for prob in (logits.double() / temperature).softmax(0)]


def one_hot(token: int, size: int) -> Probs:
    return [float(v == token) for v in range(size)]


def tensor(probs: Probs) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float32)


def verify(verifier: Any, drafts: Sequence[Draft], params: SamplingParams) -> list[Verdict]:
    rows = [VerifyRow((0,), 1, params, Noise(seed, "verifier")) for seed in range(len(drafts))]
    return verifier.verify(rows, drafts, verifier.target.begin(len(rows), 8))


def fixed(logits: torch.Tensor = TARGET_LOGITS) -> StubTarget:
    return StubTarget(len(logits), logits_of=lambda history: logits)


# The rules.


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("rule", RULES)
def test_the_output_distribution_is_the_papers(rule: str, temperature: float) -> None:
    sides = set()
    for seed in range(60):
        draft, target = (1.5 * seeded_normal(7, name, seed) for name in ("draft", "target"))
        p, q, p1, q1 = softmax(draft, temperature), softmax(target, temperature), softmax(draft), softmax(target)
        alpha = float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))
        found = CascadeRule(rule, alpha).output_probs(*(tensor(probs) for probs in (p, q, p1, q1)))
        assert found.tolist() == pytest.approx(naive_output(rule, alpha, p, q, p1, q1), abs=1e-5)
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
        sides.update(naive_kept(rule, alpha, p, q, p1, q1))
    assert sides == {True, False}, "tokens are kept here, and others are not"


def test_the_example_of_the_docstring() -> None:
    draft, target = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    found = CascadeRule("token_v3", 0.1).output_probs(draft, target, draft, target)
    assert found.tolist() == pytest.approx([0.58, 0.38, 0.04])


@pytest.mark.parametrize(("rule", "never"), [(rule, NEVER.get(rule)) for rule in RULES])
def test_alpha_goes_from_the_target_to_the_drafter(rule: str, never: float | None) -> None:
    for seed in range(20):
        draft, target = (seeded_normal(7, name, seed).softmax(0) for name in ("draft", "target"))
        if never is not None:
            assert torch.equal(CascadeRule(rule, never).output_probs(draft, target, draft, target), target)
        kept = CascadeRule(rule, 1.0).output_probs(draft, target, draft, target)
        torch.testing.assert_close(kept, draft)


@pytest.mark.parametrize("rule", TARGET_RULES)
def test_alpha_0_keeps_the_argmax_which_is_lossy_above_temperature_0(rule: str) -> None:
    draft, target = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.35, 0.25])
    found = CascadeRule(rule, 0.0).output_probs(draft, target, draft, target)
    assert found.tolist() == pytest.approx([0.5 + 0.5 * 0.4, 0.5 * 0.35, 0.5 * 0.25])


@pytest.mark.parametrize("temperature", [0.2, 0.5, 1.0, 3.0, 1000.0])
def test_a_temperature_is_undone(temperature: float) -> None:
    logits = 3.0 * seeded_normal(500, "tempered")
    found = at_temperature_1((logits / temperature).softmax(0), temperature)
    torch.testing.assert_close(found, logits.softmax(0), rtol=2e-3, atol=1e-6)


# What comes out above temperature 0.


@pytest.mark.parametrize(("temperature", "alphas"), [(1.0, ALPHAS), (0.5, COLD_ALPHAS)], ids=["T1", "T0.5"])
@pytest.mark.parametrize("rule", RULES)
def test_the_tokens_of_a_slot_follow_the_rule(rule: str, temperature: float, alphas: dict[str, float]) -> None:
    """Drafts of one token drawn from the drafter, each verified once."""
    params, alpha = SamplingParams(temperature=temperature), alphas[rule]
    p, q = softmax(DRAFT_LOGITS, temperature), softmax(TARGET_LOGITS, temperature)
    drawn = [sample(tensor(p), Noise(seed, "drafter").uniform()) for seed in range(1000)]
    drafts = [Draft((token,), tensor(p)[None]) for token in drawn]
    verdicts = verify(CascadeVerifier(fixed(), rule, alpha), drafts, params)
    counts = torch.bincount(torch.tensor([verdict.token_ids[0] for verdict in verdicts]), minlength=len(p)).tolist()
    expected = naive_output(rule, alpha, p, q, softmax(DRAFT_LOGITS), softmax(TARGET_LOGITS))
    other = q if temperature == 1.0 else naive_output(rule, alpha, p, q, p, q)
    assert stats.chisquare(counts, [len(drawn) * prob for prob in expected]).pvalue > 1e-3
    assert stats.chisquare(counts, [len(drawn) * prob for prob in other]).pvalue < 1e-6, "another rule would pass too"
    for verdict, token in zip(verdicts, drawn, strict=True):
        assert verdict.accepted == int(verdict.token_ids[0] == token or len(verdict.token_ids) == 2)


@pytest.mark.parametrize(("rule", "alpha"), [("token_v2", 0.2), ("token_v3", 0.6)])
@pytest.mark.parametrize("drafted", range(5))
def test_a_certain_draft_is_kept_or_judged_as_without_a_rule(rule: str, alpha: float, drafted: int) -> None:
    """The drafter's distribution is all on its token, so the output is that token or follows the target."""
    params = SamplingParams(temperature=0.8)
    q, q1 = softmax(TARGET_LOGITS, 0.8), softmax(TARGET_LOGITS)
    verdicts = verify(CascadeVerifier(fixed(), rule, alpha), [Draft((drafted,))] * 800, params)
    counts = torch.bincount(torch.tensor([verdict.token_ids[0] for verdict in verdicts]), minlength=len(q)).tolist()
    certain = one_hot(drafted, len(q))
    expected = naive_output(rule, alpha, certain, q, certain, q1)
    if expected == certain:
        assert counts[drafted] == len(verdicts)
    else:
        assert stats.chisquare(counts, [len(verdicts) * prob for prob in expected]).pvalue > 1e-3


@pytest.mark.parametrize("params", [SamplingParams(logit_bias={1: -1e9}), SamplingParams(1.0, logit_bias={1: -1e9})])
def test_a_banned_token_is_kept_by_no_rule(params: SamplingParams) -> None:
    """At alpha 1 every probability is high enough, 0 included."""
    for rule in RULES:
        draft = Draft((1,), torch.full((1, 5), 0.2))
        verdicts = verify(CascadeVerifier(fixed(), rule, 1.0), [draft] * 20, params)
        assert all(verdict.accepted == 0 and 1 not in verdict.token_ids for verdict in verdicts)


# What comes out at temperature 0.


def greedy_slot(rule: str, alpha: float, drafted: int, draft: torch.Tensor | None, target: torch.Tensor) -> int:
    """The output token: both distributions are certain, the gates are at temperature 1."""
    own, size = int(target.argmax()), len(target)
    p1 = one_hot(drafted, size) if draft is None else softmax(draft)
    output = naive_output(rule, alpha, one_hot(drafted, size), one_hot(own, size), p1, softmax(target))
    assert sorted(output) == one_hot(size - 1, size), "it is certain"
    return output.index(1.0)


GREEDY_ALPHAS = {"chow": 0.4, "diff": 0.3, "opt": 0.3, "token_v1": 0.3, "token_v2": 0.7, "token_v3": 0.9}


@pytest.mark.parametrize("rule", RULES)
def test_greedy_output_is_the_papers(rule: str) -> None:
    outcomes = set()
    for seed in range(150):
        draft, target = (1.5 * seeded_normal(7, name, seed) for name in ("draft", "target"))
        alpha = float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))
        drafted, own = int(draft.argmax()), int(target.argmax())
        said = None if rule in TARGET_RULES and seed % 2 else draft
        expected = greedy_slot(rule, alpha, drafted, said, target)
        probs = None if said is None else said.softmax(0)[None]
        verifier = CascadeVerifier(fixed(target), rule, alpha)
        [verdict] = verify(verifier, [Draft((drafted,), probs)], SamplingParams())
        assert verdict.token_ids == ((drafted, own) if expected == drafted else (own,))
        assert (verdict.accepted, verdict.examined) == (int(expected == drafted), 1)
        outcomes.add("own" if drafted == own else "kept" if expected == drafted else "replaced")
    assert outcomes == {"own", "kept", "replaced"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(repetition_penalty=1.5)], ids=["plain", "penalty"])
def test_greedy_blocks_are_the_rule_slot_by_slot(rule: str, params: SamplingParams) -> None:
    """Whole blocks, with their history: drafted tokens by the rule, the token after them by the target."""
    small, target, alpha, prompt = StubTarget(12, seed=1), StubTarget(12, seed=2), GREEDY_ALPHAS[rule], (3, 1)

    def logits(model: StubTarget, history: Sequence[int]) -> torch.Tensor:
        return process(model.logits_of(history), history, len(prompt), params)

    def drafted(history: Sequence[int], count: int) -> Draft:
        tokens, probs = list(history), []
        for _ in range(count):
            probs.append(logits(small, tokens).softmax(0))
            tokens.append(int(probs[-1].argmax()))
        return Draft(tuple(tokens[len(history) :]), torch.stack(probs) if probs else None)

    expected, rounds = list(prompt), 0
    while len(expected) < len(prompt) + 24:
        kept, count = True, min(3, len(prompt) + 24 - len(expected) - 1)
        for token in drafted(expected, count).token_ids:
            output = greedy_slot(rule, alpha, token, logits(small, expected), logits(target, expected))
            expected.append(output)
            kept = output == token
            if not kept:
                break
        if kept:
            expected.append(int(logits(target, expected).argmax()))
        rounds += 1
    drafter = ScriptedDrafter(lambda context, limit: drafted(context.token_ids, limit))
    verifier = CascadeVerifier(target, rule, alpha)
    rows, verdicts = speculate(verifier, target, drafter, [prompt], [params], count=24, num_speculative_tokens=3)
    assert rows[0] == expected[len(prompt) :]
    assert 6 < len(verdicts[0]) == rounds < 22, "between all kept and nothing but what the target says too"


def test_greedy_token_v3_is_the_lenient_verifier() -> None:
    for seed in range(100):
        target = fixed(1.5 * seeded_normal(7, "target", seed))
        alpha = 0.05 + 0.9 * seed / 100
        drafts = [Draft((token,)) for token in range(7)]
        ours, theirs = CascadeVerifier(target, "token_v3", alpha), LenientVerifier(target, alpha)
        assert verify(ours, drafts, SamplingParams()) == verify(theirs, drafts, SamplingParams())


def test_greedy_opt_and_token_v1_are_diff() -> None:
    """Two certain distributions differ in all or in nothing, and the drafted token is the drafter's most probable."""
    for seed in range(60):
        draft, target = (1.5 * seeded_normal(7, name, seed) for name in ("draft", "target"))
        drafts = [Draft((int(draft.argmax()),), draft.softmax(0)[None])]
        verifiers = [CascadeVerifier(fixed(target), rule, 0.1) for rule in ("diff", "opt", "token_v1")]
        diff, *others = [verify(verifier, drafts, SamplingParams()) for verifier in verifiers]
        assert others == [diff, diff]


# What is refused.


@pytest.mark.parametrize("rule", DRAFT_RULES)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "T1"])
def test_a_rule_that_looks_at_the_drafter_needs_its_distribution(rule: str, params: SamplingParams) -> None:
    verifier = CascadeVerifier(fixed(), rule, 0.3)
    with pytest.raises(InputError, match=rf"{rule} looks.*certain of its tokens.*token_v2.*layer_skip"):
        verify(verifier, [Draft((1,))], params)
    assert verifier.target.calls == [], "the target ran for nothing"
    assert len(verify(verifier, [Draft(())], params)[0].token_ids) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 3}, "top_k, top_p and min_p off"),
        ({"top_p": 0.9}, "top_k, top_p and min_p off"),
        ({"min_p": 0.1}, "top_k, top_p and min_p off"),
        ({"temperature": 0.1}, "a temperature from 0.2 to 1000"),
        ({"temperature": 2000.0}, "a temperature from 0.2 to 1000"),
    ],
)
def test_what_hides_the_drafters_distribution_is_refused(settings: dict[str, Any], message: str) -> None:
    params = SamplingParams(**{"temperature": 1.0, **settings})
    drafts = [Draft((1,), torch.full((1, 5), 0.2))]
    for rule in DRAFT_RULES:
        with pytest.raises(InputError, match=message):
            verify(CascadeVerifier(fixed(), rule, 0.3), drafts, params)
    for rule in TARGET_RULES:
        assert verify(CascadeVerifier(fixed(), rule, 0.3), drafts, params)
    greedy = replace(params, temperature=0.0)
    assert verify(CascadeVerifier(fixed(), "diff", 1.0), drafts, greedy)[0].accepted == 1, "it has no filters"


def test_gumbel_coupling_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"gumbel.*cascade"):
        verify(CascadeVerifier(fixed(), "token_v3", 0.5), [Draft((1,))], SamplingParams(1.0, coupling="gumbel"))
    assert verify(CascadeVerifier(fixed(), "token_v3", 0.5), [Draft((1,))], SamplingParams(coupling="gumbel"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the setting rule"),
        ({"rule": "chow"}, "needs the setting alpha"),
        ({"rule": "tokenv3", "alpha": 0.3}, "did you mean 'token_v3'"),
        ({"rule": 3, "alpha": 0.3}, "unknown rule"),
        ({"rule": "chow", "alpha": -0.1}, "chow takes a number from 0 to 1"),
        ({"rule": "diff", "alpha": 1.5}, "diff takes a number from -1 to 1"),
        ({"rule": "token_v3", "alpha": -0.1}, "token_v3 takes a number from 0 to 1"),
        ({"rule": "opt", "alpha": float("nan")}, "alpha is nan"),
        ({"rule": "opt", "alpha": float("inf")}, "alpha is inf"),
        ({"rule": "opt", "alpha": "much"}, "alpha is 'much'"),
        ({"rule": "opt", "alpha": True}, "alpha is True"),
        ({"rule": "opt", "alpha": 0.1, "lenience": 0.2}, "--verifier lenient"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings("ngram", "cascade", settings)


def test_it_is_found_by_name_and_reported_as_lossy() -> None:
    settings = {"rule": "token_v3", "alpha": 0.99}
    check_settings("ngram", "cascade", settings)
    target = StubTarget(scale=0.5)
    verifier = VERIFIERS["cascade"].build(Loaded(target, None), settings, lambda name: pytest.fail(name))
    [result] = [Engine(target, wrong(target), verifier).generate([1, 2], max_new_tokens=8)]
    assert (result.lossless, result.run.verifier) == (False, "cascade")
    assert "drafter" in result.deciders


@pytest.mark.parametrize("rule", ["chow", "diff", "opt", "token_v1"])
def test_a_drafting_model_reports_what_the_rule_needs_at_temperature_0(rule: str) -> None:
    target = StubTarget(vocab_size=24)
    drafter = ModelDrafter(target, Route.skipping(4, [1, 2]))
    engine = Engine(target, drafter, CascadeVerifier(target, rule, 0.2), num_speculative_tokens=4)
    result = engine.generate([1, 2, 3], max_new_tokens=40)
    assert isinstance(result, Result)
    assert not result.lossless
    assert result.stats.num_accepted_tokens > 0
