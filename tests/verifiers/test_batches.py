"""Rows of a batch do not notice each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slimtier.drafters.base import DraftContext
from slimtier.noise import Noise
from slimtier.types import Draft, SamplingParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import ScriptedDrafter, StubTarget, empty, mixed, oracle, plain_tokens, speculate, wrong
from tests.verifying import PROMPT, drawn_near, sampled


def batch() -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    prompts = [tuple(range(1, 1 + length)) for length in (1, 2, 3, 7, 20, 40)]
    settings = [
        SamplingParams(),
        sampled(),
        sampled(coupling="gumbel", top_p=0.9),
        SamplingParams(repetition_penalty=1.3),
        sampled(seed=9, temperature=0.7, top_k=20),
        SamplingParams(),
    ]
    return prompts, settings


def ragged(target: StubTarget) -> ScriptedDrafter:
    """By row: oracle, wrong, one-hot guesses, empty, drawn from the target, mixed; all of different lengths."""
    kinds = [oracle(target), wrong(target), oracle(target), empty(), drawn_near(target), mixed(target)]
    lengths = [5, 1, 3, 0, 2, 4]

    def script(context: DraftContext, limit: int) -> Draft:
        return kinds[context.key].script(context, min(limit, lengths[context.key]))

    return ScriptedDrafter(script)


def test_a_row_gets_the_same_in_a_mixed_ragged_batch_as_alone() -> None:
    """Seeded, unseeded and greedy rows share a batch, and the seeded ones do not notice."""
    prompts, settings = batch()
    target = StubTarget()
    together, _ = speculate(
        LosslessVerifier(target), target, ragged(target), prompts, settings, count=15, num_speculative_tokens=5
    )
    for key, (prompt, params) in enumerate(zip(prompts, settings, strict=True)):
        kinds = ragged(target)
        alone = ScriptedDrafter(lambda context, limit, k=key, s=kinds.script: s(replace(context, key=k), limit))
        solo, _ = speculate(
            LosslessVerifier(target), target, alone, [prompt], [params], count=15, num_speculative_tokens=5
        )
        assert together[key] == solo[0], f"row {key}"
        if params.temperature == 0.0 or params.coupling == "gumbel":
            assert together[key] == plain_tokens(target, prompt, 15, params)


def test_seeds_are_kept_beside_unseeded_mates_and_make_a_difference() -> None:
    target = StubTarget(scale=1.0)

    def run(mates: Sequence[SamplingParams], params: SamplingParams) -> list[int]:
        settings = [*mates, params]
        rows, _ = speculate(
            LosslessVerifier(target),
            target,
            drawn_near(target),
            [PROMPT] * len(settings),
            settings,
            count=10,
            num_speculative_tokens=3,
        )
        return rows[-1]

    alone = run((), sampled())
    assert alone == run((), sampled()) == run((sampled(seed=None), sampled(seed=6), SamplingParams()), sampled())
    assert len({tuple(run((), sampled(seed=seed))) for seed in range(20)}) == 20
    assert run((sampled(), sampled(seed=None)), SamplingParams()) == plain_tokens(target, PROMPT, 10)


def test_only_rows_that_need_logits_get_them_and_one_forward_serves_all() -> None:
    prompts, settings = batch()
    target = StubTarget()
    cache = target.begin(6, 64)
    target.forward([t for prompt in prompts for t in prompt[:-1]], cache, [len(prompt) - 1 for prompt in prompts])
    target.calls.clear()
    rows = [VerifyRow(p, len(p), s, Noise.of(s.seed)) for p, s in zip(prompts, settings, strict=True)]
    drafts = [Draft((1,) * length) for length in (5, 1, 3, 0, 2, 4)]
    LosslessVerifier(target).verify(rows, drafts, cache)
    assert target.calls == [(6, 2, 4, 1, 3, 5)]
    assert sorted(target.heads) == [("argmax", 11), ("logits", 10)]
    target.heads.clear()
    cache.crop([len(prompt) - 1 for prompt in prompts])
    LosslessVerifier(target).verify([replace(row, sampling=SamplingParams()) for row in rows], drafts, cache)
    assert target.heads == [("argmax", 21)]
