"""Lossless tiers: whatever the slim verifier, the drafter and the flush, the output is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.base import DraftContext, Drafter
from slimtier.drafters.model import ModelDrafter
from slimtier.drafters.ngram import NgramDrafter
from slimtier.drafters.none import NoDrafter
from slimtier.drafters.tiered import TieredDrafter
from slimtier.engine import Engine
from slimtier.errors import NonFiniteError
from slimtier.models.slim import SlimTarget
from slimtier.noise import Noise
from slimtier.sampling import probabilities
from slimtier.types import Action, Draft, Route, SamplingParams, StopParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.byte_tokenizer import ByteTokenizer
from tests.decoding import decode_rows, make_row
from tests.drafters.eagle.drafts import make_drafter
from tests.drafters.remembering import Remembering
from tests.stubs import StubTarget, drawn, empty, mixed, oracle, plain_tokens, wrong
from tests.test_engine import POEM, many, one, writer
from tests.tiering import DEEP, NOISES, SKIP, a_few, small, tiers
from tests.verifiers.test_constraints import spelling
from tests.verifiers.test_lossless import GREEDY
from tests.verifying import sampled

PROMPTS = [[10, 3, 77, 5], [1], list(range(70))]
DRAFTERS: dict[str, Callable[[StubTarget], Drafter]] = {
    "none": lambda target: NoDrafter(),
    "oracle": oracle,
    "wrong": wrong,
    "mixed": mixed,
    "ngram": lambda target: NgramDrafter(min_ngram=1),
    "auto": lambda target: AutoDrafter(),
    "layer_skip": lambda target: ModelDrafter(target, Route.skipping(4, [0, 1, 2])),
    "eagle": make_drafter,
}
noises = pytest.mark.parametrize("noise", NOISES)


# Identical tokens.


@pytest.mark.parametrize(
    ("drafter", "noise", "lengths"), a_few(11, DRAFTERS, NOISES, [(1, 1), (2, 5), (4, 2), (11, 5), (40, 0)])
)
def test_greedy_output_is_plain_decoding(drafter: str, noise: str, lengths: tuple[int, int]) -> None:
    """Rows of different lengths that end in different rounds."""
    flush, count = lengths
    target = small(noise, vocab_size=96, order=None)
    rows = [make_row(target, i, prompt, stop=StopParams(30 - 9 * i)) for i, prompt in enumerate(PROMPTS)]
    steps = decode_rows(target, tiers(target, DRAFTERS[drafter](target), (flush,), count), rows, flush)
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert row.output_ids == plain_tokens(target, prompt, len(row.output_ids))
        assert len(row.output_ids) == row.request.stop.max_new_tokens
    judged = [(sum(r.counters.accepted_per_position), r.counters.examined) for r in rows]
    kept, examined = sum(k for k, _ in judged), sum(e for _, e in judged)
    assert {"always": kept == examined > 0, "never": kept <= 3}.get(noise, kept < examined)
    assert max(step.drafted for step in steps) == min(flush, 29)


@pytest.mark.parametrize(("setting", "noise", "drafter"), a_few(4, GREEDY, NOISES, ["none", "mixed", "layer_skip"]))
def test_options_act_at_every_slot_of_a_run(setting: str, noise: str, drafter: str) -> None:
    target, params = small(noise, vocab_size=96, order=1), GREEDY[setting]
    row = make_row(target, 0, PROMPTS[0], params)
    decode_rows(target, tiers(target, DRAFTERS[drafter](target)), [row], 4)
    assert row.output_ids == plain_tokens(target, PROMPTS[0], 24, params)


@pytest.mark.parametrize(("drafter", "noise"), a_few(4, DRAFTERS, NOISES))
def test_gumbel_coupling_gives_the_plain_tokens(drafter: str, noise: str) -> None:
    target = small(noise)
    params = [sampled(coupling="gumbel", top_p=0.9), sampled(coupling="gumbel", repetition_penalty=1.2, seed=8)]
    rows = [make_row(target, i, PROMPTS[1] * (1 + i), each) for i, each in enumerate(params)]
    decode_rows(target, tiers(target, DRAFTERS[drafter](target), (5,)), rows, 5)
    for row, each in zip(rows, params, strict=True):
        assert row.output_ids == plain_tokens(target, row.token_ids[: row.num_prompt_tokens], 24, each)


def at(precision: Action) -> Route:
    return Route((precision,) * 4, (precision,) * 4)


NESTS = {
    "two": ((4, 4), (SKIP, DEEP)),
    "inner runs are longer": ((3, 7), (SKIP, DEEP)),
    "three": ((6, 3, 2), (at("q8"), at("q4"), Route(("q4", "skip", "q4", "skip"), ("q4",) * 4))),
    "none in between": ((5, 3), (Route.full(4), SKIP)),
    "the same twice": ((5, 3), (SKIP, SKIP)),
}


@pytest.mark.parametrize(("drafter", "nest"), a_few(7, DRAFTERS, NESTS))
def test_nested_tiers(drafter: str, nest: str) -> None:
    flushes, routes = NESTS[nest]
    target = small()
    settings = [SamplingParams(), SamplingParams(frequency_penalty=0.8), sampled(coupling="gumbel")]
    rows = [make_row(target, i, PROMPTS[1] * (1 + i), each) for i, each in enumerate(settings)]
    decode_rows(target, tiers(target, DRAFTERS[drafter](target), flushes, 3, routes), rows, flushes[0])
    for row, each in zip(rows, settings, strict=True):
        assert row.output_ids == plain_tokens(target, row.token_ids[: row.num_prompt_tokens], 24, each)


# Where rows end.


@noises
@pytest.mark.parametrize("flush", [1, 3, 8])
def test_the_budget_is_met_exactly(noise: str, flush: int) -> None:
    target = small(noise)
    for budget in range(1, 2 * flush + 4):
        row = make_row(target, 0, PROMPTS[1], stop=StopParams(budget), logprobs=2)
        decode_rows(target, tiers(target, mixed(target), (flush,)), [row], flush)
        assert row.output_ids == plain_tokens(target, PROMPTS[1], budget)
        assert len(row.logprobs) == budget


@noises
@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_an_end_of_text_ends_the_row_wherever_it_falls(noise: str, ignore_eos: bool, own: bool) -> None:
    """`own`: the model's, at which a run ends too; otherwise the request's."""
    plain = plain_tokens(StubTarget(), PROMPTS[0], 16)
    for slot in range(0, 13, 2 if own else 3):
        target = StubTarget(route_noise=NOISES[noise], eos_token_ids=(plain[slot],) if own else ())
        stop = StopParams(16, None if own else (plain[slot],), ignore_eos)
        row = make_row(target, 0, PROMPTS[0], stop=stop)
        decode_rows(target, tiers(target, oracle(target), (5,)), [row], 5)
        end = 16 if ignore_eos else plain.index(plain[slot]) + 1
        assert row.output_ids == plain[:end]


def test_a_run_ends_at_the_models_end_of_text() -> None:
    plain = plain_tokens(StubTarget(), PROMPTS[0], 16)
    target = StubTarget(route_noise=0.0, eos_token_ids=(plain[2],))
    for inner, calls in ((empty(), 3), (oracle(target), 1)):
        draft = propose(target, tiers(target, inner, (9,), count=4), PROMPTS[0], 9)
        # with a drafter the end comes in the middle of the slim verifier's round: what it judged after it stays
        assert draft.token_ids == tuple(plain[: 3 if calls == 3 else 5])
        assert draft.slim_calls == calls


@pytest.mark.parametrize("flush", [1, 4, 30])
def test_the_context_ends_the_row(flush: int) -> None:
    for name, make in DRAFTERS.items():
        target = StubTarget(max_positions=16)
        row = make_row(target, 0, PROMPTS[0], stop=StopParams(100))
        decode_rows(target, tiers(target, make(target), (flush,)), [row], flush)
        assert row.output_ids == plain_tokens(target, PROMPTS[0], 12), name
        assert row.finish_reason == "context"


@pytest.mark.parametrize(("noise", "flush"), [("always", 2), ("sometimes", 7), ("never", 3)])
def test_stop_strings_and_streams(noise: str, flush: int) -> None:
    target = writer(route_noise=NOISES[noise])
    engine = Engine(target, tiers(target, mixed(target), (flush,)), tokenizer=ByteTokenizer(), num_speculative_tokens=9)
    for stop in ((), ("END",), ("été", "END"), ("🙂",)):
        whole = one(engine.generate("Say:", stop=stop))
        assert whole.text == POEM[: min([POEM.find(text) for text in stop], default=len(POEM))]
        stream = engine.stream("Say:", stop=stop)
        assert "".join(step.text for step in stream) == whole.text
        assert stream.result is not None
        assert stream.result.token_ids == whole.token_ids


@pytest.mark.parametrize("coupling", ["greedy", "gumbel", "rejection"])
def test_a_constraint_that_fails_past_the_end_of_a_row(coupling: str) -> None:
    """`spelling` allows nothing after the stop token, and must not be asked beyond it; no tier knows that it ends."""
    target = small(vocab_size=32, order=1)
    params = SamplingParams(processors=(spelling,)) if coupling == "greedy" else sampled(processors=(spelling,))
    params = replace(params, coupling="gumbel" if coupling == "gumbel" else "rejection")
    lengths = set()
    for start in range(0, 20, 3):
        flushes, routes = ((6,), (DEEP,)) if start % 2 else ((6, 4), (SKIP, DEEP))
        inner = NoDrafter() if start % 4 else ModelDrafter(target)
        stop = StopParams(20, (20,))
        rows = [make_row(target, i, [start, *range(i)], replace(params, seed=start), stop) for i in range(2)]
        decode_rows(target, tiers(target, inner, flushes, 3, routes), rows, 6)
        for row in rows:
            lengths.add(len(row.output_ids))
            assert (20 in row.output_ids) == (row.finish_reason == "stop")
            if coupling != "rejection":
                plain = make_row(target, 0, row.token_ids[: row.num_prompt_tokens], row.request.sampling, stop)
                decode_rows(target, NoDrafter(), [plain], 0)
                assert row.output_ids == plain.output_ids
    assert len(lengths) > 2


# What is counted.


def propose(target: StubTarget, drafter: Drafter, tokens: list[int], limit: int, **sampling: Any) -> Draft:
    cache = target.begin(1, 64)
    target.forward(tokens[:-1], cache, [len(tokens) - 1])
    context = DraftContext(0, tokens, len(tokens), SamplingParams(**sampling), Noise(4, "drafter"), cache)
    found = drafter.propose([context], [limit])[0]
    assert cache.rows == [tokens[:-1]]
    assert set(cache.routes[0]) <= {None}
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("flush", [1, 4, 11])
def test_a_slim_verifier_that_is_the_target_is_never_corrected(flush: int, temperature: float) -> None:
    """Each pass of the target yields the run and a token of its own."""
    target = small()
    for drafter in DRAFTERS:
        joined = tiers(target, DRAFTERS[drafter](target), (flush,), routes=(Route.full(4),))
        engine = Engine(target, joined, num_speculative_tokens=flush)
        budget = 3 * (flush + 1)
        found = one(engine.generate([3, 5], max_new_tokens=budget, temperature=temperature, seed=1)).stats
        assert found.mean_acceptance_length == flush + 1
        assert (found.num_target_calls, found.acceptance_rate, found.rejection_rate) == (3, 1.0, 0.0)


def test_all_of_the_last_round_stays() -> None:
    """A run ends with the round that reaches the flush, or where no more tokens were asked for."""
    target = StubTarget(route_noise=0.0)
    plain = plain_tokens(target, PROMPTS[0], 20)
    right = mixed(target, lambda context, limit: limit)
    for flush, limit, length in ((4, 12, 4), (5, 12, 8), (5, 7, 7), (5, 5, 5), (9, 12, 12), (1, 3, 3)):
        draft = propose(target, tiers(target, right, (flush,), 3), PROMPTS[0], limit)
        assert draft.token_ids == tuple(plain[:length])


def test_deciders_and_calls() -> None:
    """The drafter is right about two tokens of three; the target agrees with the slim verifier until a planted slot."""
    target = StubTarget(route_noise=0.0)
    plain = plain_tokens(target, PROMPTS[0], 9)
    two_right = mixed(target, lambda context, limit: 2)
    draft = propose(target, tiers(target, two_right, (8,), 3), PROMPTS[0], 8)
    assert draft.token_ids == tuple(plain[:8])
    assert draft.deciders == ("drafter", "drafter", "slim") * 2 + ("drafter", "slim")
    assert (draft.slim_calls, draft.probs) == (3, None)
    rows = [make_row(target, 0, PROMPTS[0], stop=StopParams(9))]
    decode_rows(target, tiers(target, two_right, (8,), 3), rows, 8)
    assert tuple(rows[0].deciders) == (*draft.deciders, "target")
    counted = rows[0].counters.tiers
    assert (counted.slim_calls, counted.target_calls) == (3, 1)
    assert dict(counted.decided) == {"drafter": 5, "slim": 3, "target": 1}


def test_calls_of_nested_tiers_are_those_of_every_slim_verifier() -> None:
    target = small()
    row = make_row(target, 0, [3, 5], stop=StopParams(40))
    decode_rows(target, tiers(target, NoDrafter(), (6, 3), 2, (SKIP, DEEP)), [row], 6)
    calls = [route for route, _ in target.log]
    assert row.counters.tiers.slim_calls == sum(route is not None for route in calls)
    assert row.counters.tiers.target_calls == sum(route is None for route in calls) - 1, "one is the prefill"
    assert {route for route in calls if route} == {SKIP, DEEP}


def test_rows_that_reached_their_length_wait() -> None:
    """What each forward of the slim verifier feeds: only rows that still go on, and only what they need."""
    target = StubTarget(route_noise=0.0)
    cache = target.begin(3, 64)
    target.forward([1, 2, 3], cache, [1, 1, 1])
    tokens = [[1, 4], [2, 5], [3, 6]]
    params = SamplingParams()
    contexts = [DraftContext(i, row, 1, params, Noise(4, "drafter"), cache) for i, row in enumerate(tokens)]
    target.calls.clear()
    drafts = tiers(target, NoDrafter(), (4,)).propose(contexts, [2, 0, 9])
    assert target.calls == [(1, 0, 1), (1, 0, 1), (0, 0, 1), (0, 0, 1)]
    for draft, row, length in zip(drafts, tokens, (2, 0, 4), strict=True):
        assert list(draft.token_ids) == plain_tokens(target, row, length)
    assert cache.lengths == [1, 1, 1]


def test_nothing_is_left_of_rows_that_ended() -> None:
    target = small()
    inner = mixed(target)
    drafter = tiers(target, inner, (4, 2), 2, (SKIP, DEEP))
    rows = [make_row(target, key, [1, key], stop=StopParams(3 + key)) for key in range(4)]
    decode_rows(target, drafter, rows, 4)
    middle = drafter.inner
    assert isinstance(middle, TieredDrafter)
    for each in (drafter, middle):
        assert (each._noise, each._before) == ({}, {})
    assert set(inner.forgotten) == {0, 1, 2, 3}


# When something breaks.


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(logit_bias={1: 0.0})], ids=["free", "constrained"])
def test_a_slim_verifier_that_breaks_leaves_the_cache_as_it_was(after: int, params: SamplingParams) -> None:
    """The error is raised. But under a constraint a run may have gone on past the row's end, and just ends there."""
    target = StubTarget(route_noise=0.0)

    class Breaking(SlimTarget):
        left = after

        def head(self, hidden: torch.Tensor, reduce: Any = "logits") -> Any:
            self.left -= 1
            if self.left < 0:
                raise NonFiniteError("not finite")
            return super().head(hidden, reduce)

    drafter = TieredDrafter(NoDrafter(), LosslessVerifier(Breaking(target, DEEP)), 8, 3)
    cache = target.begin(1, 64)
    target.forward(PROMPTS[0][:-1], cache, [3])
    context = DraftContext(0, PROMPTS[0], 4, params, Noise(4, "drafter"), cache)
    if after and params.logit_bias:
        assert list(drafter.propose([context], [8])[0].token_ids) == plain_tokens(target, PROMPTS[0], after)
    else:
        with pytest.raises(NonFiniteError):
            drafter.propose([context], [8])
    assert cache.rows == [PROMPTS[0][:-1]]


# In an engine.


@noises
def test_turns_of_a_chat_closed_streams_and_several_answers(noise: str) -> None:
    target = small(noise)
    engine = Engine(target, tiers(target, mixed(target), (4,)), num_speculative_tokens=4)
    tokens = [3, 1, 4]
    for turn in range(4):
        result = one(engine.generate(tokens, max_new_tokens=11))
        assert list(result.token_ids) == plain_tokens(target, tokens, 11)
        assert (result.stats.num_cached_tokens > 0) == (turn > 0)
        tokens += [*result.token_ids, turn, 5]
        with engine.stream(tokens, max_new_tokens=20) as stream:
            for _ in range(turn):
                tokens += next(stream).token_ids
        tokens += [7, 8]
    answers = many(engine.generate([tokens, [5]], n=3, max_new_tokens=9))
    assert [list(found.token_ids) for found in answers] == [
        plain_tokens(target, prompt, 9) for prompt in (tokens, [5]) for _ in range(3)
    ]
    options = {"temperature": 1.0, "coupling": "gumbel", "seed": 5, "n": 3, "max_new_tokens": 9}
    found = many(engine.generate(tokens, **options))
    assert [a.token_ids for a in found] == [a.token_ids for a in many(Engine(target).generate(tokens, **options))]
    assert len({a.token_ids for a in found}) == 3


def test_interleaved_streams_do_not_disturb_each_other() -> None:
    target = small()
    engine = Engine(target, tiers(target, mixed(target), (4, 3), 3, (SKIP, DEEP)), num_speculative_tokens=4)
    prompts = [[1], [2, 3], [5] * 9]
    streams = [engine.stream(prompt, max_new_tokens=12) for prompt in prompts]
    tokens: list[list[int]] = [[], [], []]
    for _ in range(12):
        for stream, found in zip(streams, tokens, strict=True):
            found += [token for step in [next(stream, None)] if step for token in step.token_ids]
    assert tokens == [plain_tokens(target, prompt, 12) for prompt in prompts]


def test_a_seeded_row_gets_the_same_tokens_alone_and_in_any_company() -> None:
    target = small()
    for routes in ((DEEP,), (SKIP, DEEP)):

        def run(seeds: list[int], routes: tuple[Route, ...] = routes) -> list[list[int]]:
            rows = [make_row(target, key, [1, key], sampled(seed=seed)) for key, seed in enumerate(seeds)]
            drafter = drawn(lambda history: probabilities(target.logits_of(history, DEEP), sampled()))
            decode_rows(target, tiers(target, drafter, (5, 3)[: len(routes)], 2, routes), rows, 5)
            return [row.output_ids for row in rows]

        together = run([7, 8, 7, 9])
        assert run([7]) == together[:1]
        assert run([7, 3, 7])[2] == together[2]
        assert len({tuple(row) for row in together}) == 4


# Features.


class Watched(TieredDrafter):
    """Before each run all features that the innermost drafter holds must be the target's own."""

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        memory = self.inner.inner if isinstance(self.inner, TieredDrafter) else self.inner
        assert isinstance(memory, Remembering)
        for context in contexts:
            memory.check_own(context)
        return super().propose(contexts, limits)


@pytest.mark.parametrize(("noise", "nested"), a_few(2, NOISES, [False, True]))
def test_a_drafter_has_the_targets_features_of_all_that_was_kept(noise: str, nested: bool) -> None:
    """And within a run the slim verifier's, of the tokens that it wrote."""
    target = small(noise)
    memory = Remembering(target, mixed(target))
    inner = tiers(target, memory, (3,), 2, (DEEP,)) if nested else memory
    drafter = Watched(inner, LosslessVerifier(SlimTarget(target, SKIP)), 6, 3)
    prompts = [[1, 2, 3], [4], list(range(12)) * 6]
    rows = [make_row(target, i, prompt, stop=StopParams(10 + 7 * i)) for i, prompt in enumerate(prompts)]
    decode_rows(target, drafter, rows, 6)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.output_ids == plain_tokens(target, prompt, len(row.output_ids))
    assert memory.checked > 20
    assert memory.wrong == 0
    assert memory.held == {}


@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_features_over_the_turns_of_a_chat(cut: int) -> None:
    target = small()
    inner = Remembering(target, mixed(target))
    engine = Engine(target, Watched(inner, LosslessVerifier(SlimTarget(target, DEEP)), 4, 2), num_speculative_tokens=4)
    tokens = [3, 1, 4]
    for turn in range(4):
        result = one(engine.generate(tokens, max_new_tokens=10))
        assert list(result.token_ids) == plain_tokens(target, tokens, 10)
        assert (result.stats.num_cached_tokens > 0) == (turn > 0)
        tokens += result.token_ids
        tokens = [*tokens[: max(len(tokens) - cut, 2)], turn, 2, 0]
        with engine.stream([*tokens, 1], max_new_tokens=20) as stream:
            for _ in range(turn):
                next(stream)
        assert len(inner.held) == 1
    for found in many(engine.generate([tokens, [5, 1]], n=2, max_new_tokens=9)):
        assert len(found.token_ids) == 9
    assert inner.checked > 40
    assert inner.wrong == 0


def test_an_eagle_drafter_and_a_cost_aware_one_in_tiers() -> None:
    target = small()
    for make in (make_drafter, lambda target: AutoDrafter(network=make_drafter(target))):
        for params in (SamplingParams(), sampled(coupling="gumbel")):
            drafter = tiers(target, make(target), (6, 4), 3, (SKIP, DEEP))
            rows = [make_row(target, i, [1, 2, i], params, StopParams(14)) for i in range(2)]
            decode_rows(target, drafter, rows, 6)
            for row in rows:
                assert row.output_ids == plain_tokens(target, row.token_ids[:3], 14, params)
