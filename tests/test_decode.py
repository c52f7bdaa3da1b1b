"""The loop against decoding one token at a time, worked out without a cache."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import pytest
import torch

from slimtier import decode
from slimtier.drafters.none import NoDrafter
from slimtier.errors import InputError
from slimtier.types import Draft, SamplingParams, StopParams
from slimtier.verifiers.lossless import LosslessVerifier
from tests.byte_tokenizer import VOCAB, ByteTokenizer
from tests.decoding import ByKey, Factory, at_most, decode_rows, make_row
from tests.stubs import ScriptedDrafter, StubTarget, empty, mixed, oracle, plain_tokens, wrong

PROMPT = [10, 3, 7, 42]
DRAFTERS: dict[str, Factory] = {
    "none": lambda target: NoDrafter(),
    "empty": lambda target: empty(),
    "oracle": oracle,
    "wrong": wrong,
    "mixed": mixed,
}
drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())


@pytest.fixture
def target() -> StubTarget:
    return StubTarget()


@drafters
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("prompt", [[10], PROMPT, list(range(70))], ids=len)
def test_greedy_output_is_that_of_plain_decoding(target: StubTarget, make: Factory, k: int, prompt: list[int]) -> None:
    row = make_row(target, 0, prompt)
    decode_rows(target, make(target), [row], k)
    assert row.output_ids == plain_tokens(target, prompt, 24)
    assert row.finish_reason == "length"


@drafters
@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0, top_p=0.9, seed=7, coupling="gumbel"),
        SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5),
        SamplingParams(no_repeat_ngram=2, logit_bias={5: 6.0}),
    ],
    ids=["gumbel", "penalties", "bias"],
)
def test_options_act_at_every_slot(target: StubTarget, make: Factory, k: int, sampling: SamplingParams) -> None:
    row = make_row(target, 0, PROMPT, sampling)
    decode_rows(target, make(target), [row], k)
    assert row.output_ids == plain_tokens(target, PROMPT, 24, sampling)


@drafters
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_budget_is_met_exactly(target: StubTarget, make: Factory, k: int, length: int) -> None:
    for budget in (0, 1, 2, 3, k, k + 1, k + 2):
        row = make_row(target, 0, PROMPT[:length], stop=StopParams(max_new_tokens=budget), logprobs=0)
        if budget == 0:
            assert (row.output_ids, row.finish_reason) == ([], "length")
            continue
        decode_rows(target, make(target), [row], k)
        assert row.output_ids == plain_tokens(target, PROMPT[:length], budget)
        assert len(row.logprobs) == budget


@drafters
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_eos_ends_the_row_wherever_it_falls(target: StubTarget, make: Factory, ignore_eos: bool) -> None:
    plain = plain_tokens(target, PROMPT, 16)
    for slot in range(13):  # over every slot of two blocks of 5 + 1
        stop = StopParams(max_new_tokens=16, eos_token_ids=(plain[slot], 95), ignore_eos=ignore_eos)
        row = make_row(target, 0, PROMPT, stop=stop, logprobs=1)
        decode_rows(target, make(target), [row], 5)
        end = 16 if ignore_eos else plain.index(plain[slot]) + 1
        assert row.output_ids == plain[:end]
        assert row.finish_reason == ("length" if end == 16 and plain[15] != plain[slot] else "stop")
        assert len(row.logprobs) == end


@drafters
@pytest.mark.parametrize("k", [1, 5])
def test_the_context_ends_the_row(make: Factory, k: int) -> None:
    target = StubTarget(max_positions=16)
    row = make_row(target, 0, PROMPT, stop=StopParams(max_new_tokens=100))
    decode_rows(target, make(target), [row], k)
    assert row.output_ids == plain_tokens(target, PROMPT, 12)
    assert row.finish_reason == "context"


@pytest.mark.parametrize("shuffle", range(4))
def test_rows_of_a_batch_never_swap(target: StubTarget, shuffle: int) -> None:
    prompts = [[key + 1] * length for key, length in enumerate((1, 2, 3, 7, 20, 40))]
    makers = [oracle, wrong, lambda target: empty(), *(lambda t, n=n: at_most(n, mixed(t)) for n in (1, 3, 5))]
    order = list(range(6))
    random.Random(shuffle).shuffle(order)
    plain = [plain_tokens(target, prompts[key], 30) for key in order]
    stops = [
        StopParams(max_new_tokens=5 + 4 * key, eos_token_ids=(plain[i][9],) * (key % 2)) for i, key in enumerate(order)
    ]
    rows = [make_row(target, key, prompts[key], stop=stop) for key, stop in zip(order, stops, strict=True)]
    decode_rows(target, ByKey({key: make(target) for key, make in enumerate(makers)}), rows, 6)
    for row, stop, tokens in zip(rows, stops, plain, strict=True):
        solo = make_row(target, row.key, prompts[row.key], stop=stop)
        decode_rows(target, NoDrafter(), [solo], 6)
        assert row.output_ids == solo.output_ids == tokens[: len(solo.output_ids)]
        assert row.finish_reason == solo.finish_reason


def test_a_seed_gives_the_same_tokens_alone_and_in_any_company(target: StubTarget) -> None:
    sampled = SamplingParams(temperature=1.0, seed=3)

    def run(*others: SamplingParams) -> list[list[int]]:
        rows = [make_row(target, key, PROMPT, params) for key, params in enumerate((sampled, *others))]
        decode_rows(target, mixed(target, lambda context, limit: limit // 2), rows, 4)
        return [row.output_ids for row in rows]

    alone = run()[0]
    unseeded, other = SamplingParams(temperature=1.0), replace(sampled, seed=4)
    together = run(unseeded, other, SamplingParams())
    assert run()[0] == alone == together[0]
    assert together[2] != alone
    assert together[3] == plain_tokens(target, PROMPT, 24)
    hot = [run(replace(sampled, temperature=5.0, seed=seed))[1] for seed in range(20)]
    assert len({tuple(tokens) for tokens in hot}) > 1


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.7, seed=1, coupling="gumbel")])
def test_logprobs_are_the_models_own_for_every_token(target: StubTarget, sampling: SamplingParams) -> None:
    sampling = replace(sampling, presence_penalty=1.0, logit_bias={4: 3.0})
    plain = plain_tokens(target, PROMPT, 11, sampling)
    stop = StopParams(max_new_tokens=11, eos_token_ids=(plain[8],))
    row = make_row(target, 0, PROMPT, sampling, stop, logprobs=5)
    decode_rows(target, mixed(target), [row], 4)
    assert len(row.logprobs) == len(row.output_ids) == plain.index(plain[8]) + 1
    for position, (token, found) in enumerate(zip(row.output_ids, row.logprobs, strict=True)):
        want = target.logits_of(PROMPT + plain[:position]).log_softmax(0)
        assert next(iter(found)) == token
        assert set(found) == {token, *want.topk(5).indices.tolist()}
        assert all(abs(value - float(want[one])) < 1e-4 for one, value in found.items())


@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize("width", [1, 3])
@drafters
def test_stop_strings_end_everything_at_the_same_token(make: Factory, cut: int, width: int) -> None:
    script = list(b"the quick brown fox")
    target = StubTarget(VOCAB, logits_of=lambda seen: 9.0 * torch.eye(VOCAB)[script[(len(seen) - 2) % len(script)]])
    stop = StopParams(max_new_tokens=15, stop=(bytes(script[cut : cut + width]).decode(), "xyz", "n f"))
    plain, text = [], ""
    for token in script[:15]:  # one token at a time
        plain.append(token)
        text = bytes(plain).decode()
        if any(one in text for one in stop.stop):
            text = text[: min(text.find(one) for one in stop.stop if one in text)]
            break
    row = make_row(target, 0, [1, 2], stop=stop, logprobs=2, tokenizer=ByteTokenizer())
    decode_rows(target, make(target), [row], 8)
    assert (row.output_ids, row.text.text) == (plain, text)
    assert len(row.logprobs) == len(row.deciders) == len(plain)
    assert row.finish_reason == "stop"


def test_deciders_name_who_chose_each_token(target: StubTarget) -> None:
    row = make_row(target, 0, PROMPT, stop=StopParams(max_new_tokens=9))
    decode_rows(target, mixed(target, lambda context, limit: 2), [row], 4)
    assert row.deciders == ["drafter", "drafter", "target"] * 3


def test_a_closed_generator_frees_the_drafter_and_leaves_a_good_state(target: StubTarget) -> None:
    drafter = mixed(target)
    rows = [make_row(target, key, PROMPT) for key in (5, 9)]
    cache = target.begin(2, 100)
    decode.prefill(target, cache, [row.token_ids for row in rows])
    steps = decode.generate(drafter, LosslessVerifier(target), cache, rows, 4)
    next(steps)
    assert cache.rows == [row.token_ids[:-1] for row in rows]
    steps.close()
    assert drafter.forgotten == [5, 9]
    seen = weakref.ref(cache)
    del cache, steps
    gc.collect()
    assert seen() is None


def test_a_finished_row_is_forgotten_while_the_others_go_on(target: StubTarget) -> None:
    drafter = oracle(target)
    rows = [make_row(target, key, PROMPT, stop=StopParams(max_new_tokens=n)) for key, n in enumerate((3, 30))]
    cache = target.begin(2, 100)
    decode.prefill(target, cache, [row.token_ids for row in rows])
    steps = decode.generate(drafter, LosslessVerifier(target), cache, rows, 4)
    next(steps)
    assert drafter.forgotten == [0]
    steps.close()


def test_prefill_goes_on_from_what_the_cache_holds_in_chunks(target: StubTarget) -> None:
    long, short = [1] * 150, [2] * 5
    cache = target.begin(2, 200)
    target.forward([1] * 10, cache, [10, 0])
    target.calls.clear()
    decode.prefill(target, cache, [long, short])
    assert cache.rows == [long[:-1], short[:-1]]
    assert target.calls == [(64, 4), (64, 0), (11, 0)]


def test_a_draft_that_is_longer_than_asked_for_is_refused(target: StubTarget) -> None:
    drafter = ScriptedDrafter(lambda context, limit: Draft(()), "greedy")
    drafter.propose = lambda contexts, limits: [Draft((1,) * 5)]  # type: ignore[method-assign]
    with pytest.raises(InputError, match="'greedy' proposed 5 tokens where 4"):
        decode_rows(target, drafter, [make_row(target, 0, PROMPT)], 4)
