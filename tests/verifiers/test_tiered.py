"""Lossy tiers: against VIA-SD's rule, step by step without caches or batches."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.base import DraftContext
from slimtier.engine import Engine
from slimtier.errors import InputError, NonFiniteError
from slimtier.models.slim import SlimTarget
from slimtier.noise import Noise
from slimtier.sampling import probabilities
from slimtier.types import Decider, Draft, Route, SamplingParams, StopParams
from slimtier.verifiers.base import VerifyRow
from slimtier.verifiers.gate import Gate
from slimtier.verifiers.tiered import ObservingVerifier, TieredVerifier
from tests.decoding import decode_rows, make_row
from tests.drafters.eagle.drafts import make_drafter
from tests.drafters.remembering import Remembering
from tests.stubs import ScriptedDrafter, StubTarget, drawn, empty, mixed, oracle, plain_tokens, wrong
from tests.test_engine import many, one
from tests.verifiers.test_constraints import spelling
from tests.verifiers.test_gate import GATES
from tests.verifiers.test_lossless import GREEDY
from tests.verifiers.tiered_rule import ROUTE, by_the_rule, guesses, noisy, tiered
from tests.verifying import sampled

PROMPTS = [[3, 1, 4, 1, 5], [7], list(range(12)) * 6]


DRAFTERS: dict[str, Callable[[StubTarget], ScriptedDrafter]] = {
    "guesses": guesses,
    "oracle": oracle,
    "wrong": wrong,
    "mixed": mixed,
    "empty": lambda target: empty(),
}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_is_the_rules(name: str, drafter: str) -> None:
    """Rows of different lengths that escalate in different rounds; what the target reads is what it has not read."""
    gate, k = GATES[name], 4
    target = noisy()
    make = DRAFTERS[drafter]
    rows = [make_row(target, i, prompt, stop=StopParams(34 - 10 * i)) for i, prompt in enumerate(PROMPTS)]
    decode_rows(target, make(target), rows, k, tiered(target, gate))
    deciders: Counter[Decider] = Counter()
    for row, prompt in zip(rows, PROMPTS, strict=True):
        naive = by_the_rule(target, gate, prompt, len(row.output_ids), make(target), k, key=row.key)
        assert row.token_ids == naive.tokens
        assert row.deciders == naive.deciders
        assert row.counters.tiers.target_calls == len(naive.fed)
        assert row.counters.tiers.slim_calls == naive.rounds
        deciders.update(naive.deciders)
        alone = make_row(target, row.key, prompt, stop=row.request.stop)
        target.log.clear()
        decode_rows(target, make(target), [alone], k, tiered(target, gate))
        assert alone.output_ids == row.output_ids
        prefills = math.ceil((len(prompt) - 1) / 64)
        fed = [lengths[0] for route, lengths in target.log if route is None]
        assert fed[prefills:] == naive.fed
    assert {reduce for reduce, _ in target.heads} <= ({"best two", "argmax"} if gate.by_best_two else {"logits"})
    if drafter == "guesses" and name in ("default", "conservative", "aggressive", "margin"):
        assert min(deciders["drafter"], deciders["slim"], deciders["target"]) > 3


@pytest.mark.parametrize("name", [name for name, gate in GATES.items() if gate.by_best_two and not gate.slim_alone])
def test_who_needs_logits_gets_them_and_the_same_tokens(name: str) -> None:
    """A row that asks for log probabilities, and the rows decoded beside it."""
    target = noisy()
    found = []
    for logprobs in (None, 2):
        target.heads.clear()
        rows = [make_row(target, i, prompt, stop=StopParams(30)) for i, prompt in enumerate(PROMPTS[:2])]
        rows.append(make_row(target, 2, PROMPTS[2], stop=StopParams(30), logprobs=logprobs))
        decode_rows(target, guesses(target), rows, 4, tiered(target, GATES[name]))
        found.append([(row.token_ids, row.deciders, row.counters.tiers.target_calls) for row in rows])
        assert [len(row.logprobs) for row in rows] == [0, 0, 30 if logprobs else 0]
        assert ("logits" in dict(target.heads)) == bool(logprobs)
    assert found[0] == found[1]


@pytest.mark.parametrize("setting", GREEDY)
def test_options_act_on_both_models_at_every_slot(setting: str) -> None:
    target, params = noisy(vocab_size=96, order=1), GREEDY[setting]
    for gate in (Gate(0.6, 0.3, margin=0.2), Gate(1.0, 0.0, margin=0.2)):
        row = make_row(target, 0, PROMPTS[0], params, StopParams(40))
        decode_rows(target, guesses(target), [row], 5, tiered(target, gate))
        naive = by_the_rule(target, gate, PROMPTS[0], 40, guesses(target), 5, params=params)
        assert (row.token_ids, row.deciders) == (naive.tokens, naive.deciders)


class Lettered(StubTarget):
    """Whatever stands before: at slot i of the block the slim verifier's best token is 1 and token 2 has the ratio of
    letter i of `word` (A .9, B .6, C and c .2); the target's best is 2 where the letter is c, else 3."""

    def __init__(self, word: str, start: int) -> None:
        super().__init__(5)
        self.word, self.start = word, start

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        slot = len(history) - self.start
        letter = self.word[slot] if 0 <= slot < len(self.word) else "A"
        logits = torch.full((5,), -9.0)
        if route is None:
            logits[2 if letter == "c" else 3] = 0.0
        else:
            logits[1], logits[2] = 0.0, math.log({"A": 0.9, "B": 0.6}.get(letter, 0.2))
        return logits


def expected_of(word: str) -> list[tuple[int, Decider]]:
    """By hand: A keeps 2; B is the slim verifier's 1; from the first C on the target decides, and keeps 2 only at c.
    A block that was kept whole gets one token more, of whoever decided last."""
    found: list[tuple[int, Decider]] = []
    asked = False
    for letter in word:
        asked = asked or letter in "Cc"
        if asked:
            found.append((2 if letter == "c" else 3, "target"))
        else:
            found.append((2, "drafter") if letter == "A" else (1, "slim"))
        if found[-1][0] != 2:
            return found
    return [*found, (3, "target") if asked else (1, "slim")]


@pytest.mark.parametrize("length", range(5))
def test_every_place_of_every_region_in_a_block(length: int) -> None:
    tokens = [0, 4, 0]
    for word in map("".join, itertools.product("ABCc", repeat=length)):
        target = Lettered(word, len(tokens))
        cache = target.begin(1, 64)
        target.forward(tokens[:-1], cache, [2])
        target.calls.clear()
        row = VerifyRow(tokens, 3, SamplingParams(), Noise(0))
        verdict = tiered(target).verify([row], [Draft((2,) * length)], cache)[0]
        expected = expected_of(word)
        assert list(zip(verdict.token_ids, verdict.deciders, strict=True)) == expected, word
        asked = expected[-1][1] == "target"
        assert (verdict.target_calls, verdict.slim_calls) == (int(asked), 1)
        assert len(target.calls) == 1 + asked, "one forward for all that is left of the block"
        assert verdict.accepted == sum(token == 2 for token, _ in expected)
        assert verdict.examined == min(len(expected), length)
        assert cache.rows == [[*tokens, *verdict.token_ids][:-1]]
        assert cache.verified == [len(cache.rows[0]) if asked else 2]


# Both ends of the thresholds.


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gate", [Gate(2.0, 1.5), Gate(math.inf, math.inf), Gate(margin=math.inf)])
def test_escalating_always_is_the_targets_own_output(drafter: str, gate: Gate) -> None:
    """Also where nothing is drafted."""
    target = noisy(vocab_size=96)
    for params in (SamplingParams(), SamplingParams(frequency_penalty=0.7)):
        row = make_row(target, 0, PROMPTS[0], params)
        decode_rows(target, DRAFTERS[drafter](target), [row], 4, tiered(target, gate))
        assert row.output_ids == plain_tokens(target, PROMPTS[0], 24, params)
        assert set(row.deciders) == {"target"}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_escalating_never_is_the_slim_verifier_alone(drafter: str) -> None:
    """And a drafter that guesses it well saves its steps: a token that it would write too ends no block."""
    target = noisy(vocab_size=96)
    row = make_row(target, 0, PROMPTS[0])
    decode_rows(target, DRAFTERS[drafter](target), [row], 4, tiered(target, Gate(2.0, 0.0)))
    tokens = list(PROMPTS[0])
    for _ in range(24):
        tokens.append(int(target.logits_of(tokens, ROUTE).argmax()))
    assert row.token_ids == tokens
    assert set(row.deciders) == {"slim"}
    assert row.counters.tiers.target_calls == 0
    own = ScriptedDrafter(lambda context, limit: Draft(tuple(tokens[len(context.token_ids) :][:limit])))
    row = make_row(target, 0, PROMPTS[0], stop=StopParams(20))
    decode_rows(target, own, [row], 4, tiered(target, Gate(2.0, 0.0)))
    assert row.token_ids == tokens[:25]
    assert row.counters.tiers.slim_calls == 4


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gate", [Gate(1.0, 0.5), Gate(2.0, 1.5), Gate(1.0, 0.0, margin=0.3)])
def test_a_route_that_is_the_target_never_moves_its_tokens(drafter: str, gate: Gate) -> None:
    """With thresholds that keep nothing but the best. What it writes is the target's own and is never read again but
    where the target is asked about the same block."""
    target = noisy(vocab_size=96)
    row = make_row(target, 0, PROMPTS[0])
    decode_rows(target, DRAFTERS[drafter](target), [row], 4, tiered(target, gate, Route.full(4)))
    assert row.output_ids == plain_tokens(target, PROMPTS[0], 24)
    asked = row.counters.tiers.target_calls
    assert len(target.log) == 1 + row.counters.tiers.slim_calls + asked
    assert max(lengths[0] for _, lengths in target.log) <= 5


# Where rows end.


def test_ends_of_every_kind() -> None:
    gate, target = Gate(), noisy()
    whole = by_the_rule(target, gate, PROMPTS[0], 30, guesses(target), 5).tokens[5:]
    for slot in range(14):
        for ignore_eos in (False, True):
            stop = StopParams(30, (whole[slot],), ignore_eos)
            row = make_row(target, 0, PROMPTS[0], stop=stop)
            decode_rows(target, guesses(target), [row], 5, tiered(target, gate))
            assert row.output_ids == (whole if ignore_eos else whole[: whole.index(whole[slot]) + 1])
    for budget in range(1, 14):
        row = make_row(target, 0, PROMPTS[0], stop=StopParams(budget))
        decode_rows(target, guesses(target), [row], 5, tiered(target, gate))
        naive = by_the_rule(target, gate, PROMPTS[0], budget, guesses(target), 5)
        assert row.token_ids == naive.tokens
    target = noisy(max_positions=19)
    row = make_row(target, 0, PROMPTS[0], stop=StopParams(100))
    decode_rows(target, guesses(target), [row], 5, tiered(target, gate))
    assert (len(row.token_ids), row.finish_reason) == (19, "context")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("escalates", [False, True])
def test_a_constraint_that_fails_past_the_end_of_a_row(temperature: float, escalates: bool) -> None:
    """The drafted tokens go on after the stop token, where nothing is allowed and nothing may be asked."""
    target = noisy(vocab_size=32, order=1)
    gate = Gate(2.0, 1.5) if escalates else Gate(0.2, 0.1)
    params = SamplingParams(temperature=temperature, seed=3, processors=(spelling,))

    def script(context: DraftContext, limit: int) -> Draft:
        tokens: list[int] = list(context.token_ids)
        for _ in range(limit):
            logits = target.logits_of(tokens, ROUTE)
            logits[21:] = -math.inf
            tokens.append(int(logits.argmax()))
        return Draft(tuple(tokens[len(context.token_ids) :]))

    ends = 0
    for start in range(20):
        row = make_row(target, 0, [start], params, StopParams(20, (20,)))
        decode_rows(target, ScriptedDrafter(script), [row], 6, tiered(target, gate))
        assert (20 in row.output_ids) == (row.finish_reason == "stop")
        ends += row.finish_reason == "stop"
    assert ends > 2


def test_gumbel_coupling_leaves_nothing_to_a_gate() -> None:
    target = noisy()
    engine = Engine(target, mixed(target), tiered(target))
    with pytest.raises(InputError, match="'gumbel' and the verifier 'paper' exclude each other"):
        engine.generate(PROMPTS[0], temperature=1.0, coupling="gumbel")
    assert one(engine.generate(PROMPTS[0], coupling="gumbel", max_new_tokens=5)).stats.num_output_tokens == 5


def test_a_calibrated_gate_is_for_temperature_0() -> None:
    target = noisy()
    verifier = TieredVerifier(target, SlimTarget(target, ROUTE), Gate(), "calibrated")
    engine = Engine(target, mixed(target), verifier)
    with pytest.raises(InputError, match="calibrated at temperature 0: use that, or tiers paper"):
        engine.generate(PROMPTS[0], temperature=1.0)
    assert one(engine.generate(PROMPTS[0], max_new_tokens=5)).stats.num_output_tokens == 5


@pytest.mark.parametrize("draft", [Draft((12,)), Draft((1, 2), torch.ones(1, 12) / 12)])
def test_a_draft_that_cannot_be_is_named_before_any_work(draft: Draft) -> None:
    target = noisy()
    row = VerifyRow([1, 2], 2, SamplingParams(), Noise(0))
    slim = SlimTarget(target, ROUTE)
    for verifier in (TieredVerifier(target, slim, Gate()), ObservingVerifier(target, slim, Gate())):
        cache = target.begin(1, 64)
        target.forward([1], cache, [1])
        target.log.clear()
        with pytest.raises(InputError, match="the drafter"):
            verifier.verify([row], [draft], cache)
        assert (target.log, cache.lengths) == ([], [1])


# Features, log probabilities, the cache.


@pytest.mark.parametrize("name", ["default", "slim alone", "target alone", "margin"])
def test_features_are_of_whoever_wrote_and_the_targets_once_it_looked(name: str) -> None:
    target = noisy()
    drafter = Remembering(target, guesses(target))
    rows = [make_row(target, i, prompt, stop=StopParams(34 - 10 * i)) for i, prompt in enumerate(PROMPTS)]
    decode_rows(target, drafter, rows, 4, tiered(target, GATES[name]))
    for row, prompt in zip(rows, PROMPTS, strict=True):
        naive = by_the_rule(target, GATES[name], prompt, len(row.output_ids), guesses(target), 4, key=row.key)
        assert row.token_ids == naive.tokens
    assert drafter.checked > 10
    assert drafter.wrong == 0
    assert drafter.held == {}


def test_log_probabilities_are_of_the_model_that_was_asked_last() -> None:
    target = noisy()
    for word_gate in (Gate(), Gate(2.0, 0.0), Gate(2.0, 1.5)):
        row = make_row(target, 0, PROMPTS[0], logprobs=2)
        decode_rows(target, guesses(target), [row], 4, tiered(target, word_gate))
        assert len(row.logprobs) == 24
        whose = set()
        for slot, found in enumerate(row.logprobs):
            history, token = row.token_ids[: 5 + slot], row.output_ids[slot]
            said = {route: float(target.logits_of(history, route).log_softmax(0)[token]) for route in (None, ROUTE)}
            whose |= {route for route, value in said.items() if value == pytest.approx(found[token], abs=1e-5)}
            assert any(value == pytest.approx(found[token], abs=1e-5) for value in said.values())
            if row.deciders[slot] == "target":
                assert said[None] == pytest.approx(found[token], abs=1e-5)
        assert whose == {Gate(): {None, ROUTE}, Gate(2.0, 0.0): {ROUTE}}.get(word_gate, {None})


@pytest.mark.parametrize("breaks", ["slim", "target"])
def test_a_model_that_breaks_leaves_a_good_engine(breaks: str) -> None:
    target = noisy()
    verifier = tiered(target)
    engine = Engine(target, guesses(target), verifier, num_speculative_tokens=4)
    want = one(engine.generate(PROMPTS[0], max_new_tokens=20)).token_ids
    broken = verifier.slim if breaks == "slim" else target
    own = broken.head

    def head(*_: Any, **__: Any) -> Any:
        raise NonFiniteError("not finite")

    broken.head = head  # type: ignore[method-assign, assignment]
    with pytest.raises(NonFiniteError):
        engine.generate([*PROMPTS[0], *want[:9]], max_new_tokens=20)
    broken.head = own  # type: ignore[method-assign]
    assert one(engine.generate(PROMPTS[0], max_new_tokens=20)).token_ids == want


@pytest.mark.parametrize("features", [False, True])
def test_turns_of_a_chat_begin_with_what_the_target_itself_read(features: bool) -> None:
    """The next request keeps of the last one's cache what the target wrote, and the rest of its prompt is the
    target's too (the stub refuses a pass of the target that goes on from what a route wrote)."""
    target = noisy()

    def engine_of(drafter: Any) -> Engine:
        return Engine(target, drafter, tiered(target), num_speculative_tokens=4)

    def afresh(tokens: list[int]) -> tuple[int, ...]:
        return one(engine_of(guesses(target)).generate(tokens, max_new_tokens=12)).token_ids

    memory = Remembering(target, guesses(target))
    engine = engine_of(memory if features else guesses(target))
    tokens, cached = list(PROMPTS[0]), []
    for turn in range(6):
        verified = engine._kept.cache.verified[0] if engine._kept else 0
        result = one(engine.generate(tokens, max_new_tokens=12))
        cached.append(result.stats.num_cached_tokens)
        assert cached[-1] == max(verified - features, 0)
        assert result.token_ids == afresh(tokens)
        assert not result.lossless
        tokens += [*result.token_ids, turn, 5]
    assert min(cached[1:]) > 0
    for rounds in range(4):
        with engine.stream([*tokens, 1], max_new_tokens=20) as stream:
            for _ in range(rounds):
                tokens += next(stream).token_ids
        tokens += [rounds]
        assert one(engine.generate(tokens, max_new_tokens=12)).token_ids == afresh(tokens)
    assert memory.checked > 20 or not features
    assert memory.wrong == 0


def test_several_answers_are_those_of_rows_on_their_own() -> None:
    target = noisy()
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12, "n": 3}
    chances = drawn(lambda history: probabilities(target.logits_of(history, Route.skipping(4, [1])), sampled()))
    together = many(Engine(target, chances, tiered(target)).generate([PROMPTS[0], [2]], **options))
    alone = many(Engine(target, chances, tiered(target)).generate(PROMPTS[0], **options))
    assert [found.token_ids for found in together[:3]] == [found.token_ids for found in alone]
    assert len({found.token_ids for found in alone}) == 3


def test_an_eagle_drafter_and_a_cost_aware_one_run_in_lossy_tiers() -> None:
    target = noisy()
    for make in (make_drafter, lambda target: AutoDrafter(network=make_drafter(target))):
        for params in (SamplingParams(), sampled()):
            rows = [make_row(target, i, [1, 2, i], params) for i in range(3)]
            decode_rows(target, make(target), rows, 4, tiered(target))
            assert all(len(row.output_ids) == 24 for row in rows)
