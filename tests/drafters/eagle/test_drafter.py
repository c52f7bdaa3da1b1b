"""The EAGLE-3 drafter in the loop: what it drafts, what it remembers, and that the output stays the target's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slimtier.drafters.base import DraftContext, Reading
from slimtier.drafters.eagle.config import HeadConfig, NormConfig
from slimtier.engine import Engine
from slimtier.errors import NonFiniteError
from slimtier.noise import Noise
from slimtier.sampling import probabilities, process, sample
from slimtier.types import Draft, SamplingParams, StopParams, Verdict
from tests.decoding import decode_rows, make_row
from tests.drafters.eagle.drafts import (
    CAPTURE,
    Checked,
    features_of,
    make_drafter,
    make_network,
    naive_chain,
    naive_logits,
)
from tests.stubs import StubTarget, mixed, plain_tokens

PROMPT = [3, 1, 4, 1, 5]


def small(vocab_size: int = 6, **options: Any) -> StubTarget:
    """So few tokens that random drafts are accepted now and then."""
    return StubTarget(vocab_size, **options)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [1, 2, 5, 66, 140])
def test_drafts_are_those_worked_out_afresh_and_the_output_is_plain(k: int, length: int) -> None:
    target = small()
    drafter = Checked(target)
    prompt = [(7 * i * i + i) % 6 for i in range(length)]
    row = make_row(target, 0, prompt, stop=StopParams(max_new_tokens=30))
    decode_rows(target, drafter, [row], k)
    assert row.output_ids == plain_tokens(target, prompt, 30)
    assert drafter.empty == (length == 1), "nothing is known before the first token"
    assert 0 < sum(decider == "drafter" for decider in row.deciders) < 30
    assert drafter.checked > 5


@pytest.mark.parametrize("k", [1, 4])
def test_rows_of_a_batch_are_drafted_for_themselves(k: int) -> None:
    target = small()
    drafter = Checked(target)
    prompts = [[i % 6] * (1 + 17 * i) for i in range(5)]
    stops = [StopParams(max_new_tokens=4 + 5 * (i % 3)) for i in range(5)]
    rows = [make_row(target, i, prompts[i], stop=stops[i]) for i in range(5)]
    decode_rows(target, drafter, rows, k)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.output_ids == plain_tokens(target, prompt, len(row.output_ids))
    assert drafter.checked > 10
    assert drafter._rows == {}, "nothing is left of rows that ended"


HEADS = {
    "full": HeadConfig("full", 6),
    "slim": HeadConfig("slim", 6, rank=3),
    "trimmed": HeadConfig("trimmed", 6, size=4),
    "routed": HeadConfig("routed", 6, rank=3, size=2),
}
NORMS = [
    NormConfig(),
    NormConfig(before_residual=True, output=True),
    NormConfig(before_fc=True),
    NormConfig(fc=True, output=True),
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_every_head_and_body(head: str, norms: NormConfig, num_layers: int) -> None:
    target = small()
    drafter = Checked(target, head=HEADS[head], norms=norms, num_layers=num_layers)
    rows = [make_row(target, i, PROMPT[: 3 + i], stop=StopParams(max_new_tokens=12)) for i in range(2)]
    decode_rows(target, drafter, rows, 3)
    for row in rows:
        assert row.output_ids == plain_tokens(target, row.token_ids[: row.num_prompt_tokens], 12)
    assert drafter.checked > 4
    if head == "trimmed":
        assert max(naive_chain(drafter.network, target, PROMPT, 9)) < 4  # type: ignore[attr-defined]


# Sampling.

SETTINGS = {
    "penalty": SamplingParams(repetition_penalty=1.5, logit_bias={2: 1.0}),
    "T1": SamplingParams(temperature=1.0, seed=4),
    "filters": SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, presence_penalty=0.5, seed=4),
    "gumbel": SamplingParams(temperature=1.0, coupling="gumbel", seed=4),
}


def read_in(drafter: Any, target: StubTarget, tokens: list[int], key: int = 0) -> None:
    drafter.read([Reading(key, tokens, 0, features_of(target, tokens[:-1]))])


def context(tokens: list[int], params: SamplingParams | None = None, key: int = 0) -> DraftContext:
    return DraftContext(key, tokens, len(tokens), params or SamplingParams(), Noise(4, "drafter"))


@pytest.mark.parametrize("setting", SETTINGS)
@torch.no_grad()
def test_the_reported_distribution_is_the_one_drawn_from(setting: str) -> None:
    """Replaying the noise over what the network says of each history gives the drafted tokens."""
    target, params = small(), SETTINGS[setting]
    drafter = make_drafter(target)
    read_in(drafter, target, PROMPT)
    draft = drafter.propose([context(PROMPT, params)], [5])[0]
    assert len(draft.token_ids) == 5
    assert (draft.probs is None) == (setting in ("penalty", "gumbel"))
    network, noise, drafted = drafter.runtime.network, Noise(4, "drafter"), []  # type: ignore[attr-defined]
    for slot, token in enumerate(draft.token_ids):
        logits = naive_logits(network, PROMPT, features_of(target, PROMPT[:-1]), drafted)
        history = [*PROMPT, *drafted]
        processed = process(logits, history, len(PROMPT), params)
        probs = probabilities(processed, params)
        if draft.probs is not None:
            torch.testing.assert_close(draft.probs[slot], probs, rtol=1e-4, atol=1e-6)
            assert sample(draft.probs[slot], noise.uniform()) == token
        elif setting == "penalty":
            assert token == int(processed.argmax())
        else:
            assert token == int((probs.log() + noise.gumbel(len(history), 6)).argmax())
        drafted.append(token)


@pytest.mark.parametrize("confidence", [0.0, 0.3])
@pytest.mark.parametrize("setting", ["penalty", "gumbel"])
def test_certain_settings_give_the_plain_tokens(setting: str, confidence: float) -> None:
    target, params = small(), SETTINGS[setting]
    rows = [make_row(target, i, PROMPT[: 1 + i], params, StopParams(max_new_tokens=25)) for i in range(3)]
    decode_rows(target, make_drafter(target, confidence), rows, 4)
    for row in rows:
        assert row.output_ids == plain_tokens(target, row.token_ids[: row.num_prompt_tokens], 25, params)


def test_rows_of_every_kind_share_a_batch() -> None:
    target = small()
    kinds = [SamplingParams(), *SETTINGS.values(), SamplingParams()]
    rows = [make_row(target, i, PROMPT, params, StopParams(max_new_tokens=20)) for i, params in enumerate(kinds)]
    decode_rows(target, make_drafter(target), rows, 4)
    for i, params in enumerate(kinds):
        alone = make_row(target, i, PROMPT, params, StopParams(max_new_tokens=20))
        decode_rows(target, make_drafter(target), [alone], 4)
        assert rows[i].output_ids == alone.output_ids


# Confidence.


@torch.no_grad()
def test_a_draft_ends_before_a_token_under_the_confidence() -> None:
    target = small()
    lengths = set()
    for start in range(6):
        tokens = [start, *PROMPT]
        network = make_network(target)
        want, features = [], features_of(target, tokens[:-1])
        while len(want) < 6:
            logits = naive_logits(network, tokens, features, want)
            if float(logits.softmax(-1).max()) < 0.4:
                break
            want.append(int(logits.argmax()))
        for params in (SamplingParams(), SamplingParams(processors=(lambda ids, logits: logits,))):
            drafter = make_drafter(target, 0.4)
            read_in(drafter, target, tokens)
            assert list(drafter.propose([context(tokens, params)], [6])[0].token_ids) == want
        lengths.add(len(want))
    assert len(lengths) > 1


# What is remembered.


@pytest.mark.parametrize("cut", [0, 1, 2, 7, 99])
def test_the_turns_of_a_chat_draft_as_if_read_afresh(cut: int) -> None:
    """The second prompt keeps all but `cut` of the tokens so far and goes on otherwise."""
    target = small()
    drafter = Checked(target)
    engine = Engine(target, drafter, num_speculative_tokens=3)
    tokens = list(PROMPT)
    for turn in range(4):
        result = engine.generate(tokens, max_new_tokens=10)
        assert list(result.token_ids) == plain_tokens(target, tokens, 10)  # type: ignore[union-attr]
        assert (result.stats.num_cached_tokens > 0) == (turn > 0)  # type: ignore[union-attr]
        tokens += result.token_ids  # type: ignore[union-attr]
        tokens = [*tokens[: max(len(tokens) - cut, 2)], turn, 2, 0]
        assert len(drafter._rows) == 1
    assert drafter.empty == 0
    assert drafter.checked > 10


@pytest.mark.parametrize("alike", [0, 8, 9, 10, 17])
def test_prompts_that_begin_alike_draft_as_if_read_apart(alike: int) -> None:
    target = small()
    drafter = Checked(target)
    start = [i % 5 for i in range(18)]
    prompts = [[*start[:alike], i, *start[alike + 1 :], i] for i in range(3)] + [start]
    results = Engine(target, drafter, num_speculative_tokens=3).generate(prompts, max_new_tokens=10)
    assert isinstance(results, list)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == plain_tokens(target, prompt, 10)
    assert [result.stats.num_cached_tokens for result in results] == [0] + [max(alike - 1, 0) * (alike > 8)] * 3
    assert drafter.empty == 0
    assert drafter.checked > 10


@pytest.mark.parametrize("rounds", range(4))
def test_a_cancelled_stream_leaves_a_good_row(rounds: int) -> None:
    target = small()
    drafter = Checked(target)
    engine = Engine(target, drafter)
    with engine.stream(PROMPT, max_new_tokens=20) as stream:
        for _ in range(rounds):
            next(stream)
    engine.generate([*PROMPT, 2, 2], max_new_tokens=8)
    engine.generate([[1, 2], [3]], max_new_tokens=5)
    assert drafter.empty == 1, "the prompt of one token"
    assert len(drafter._rows) == 1, "the row that the next turn may continue"


@pytest.mark.parametrize("length", [1, 2, 5, 150])
def test_several_answers_read_their_prompt_once(length: int) -> None:
    target = small()
    drafter = Checked(target)
    prompt = [(5 * i) % 6 for i in range(length)]
    engine = Engine(target, drafter, num_speculative_tokens=3)
    found = engine.generate([prompt, PROMPT], n=3, max_new_tokens=12)
    for result in found[:3]:  # type: ignore[index]
        assert list(result.token_ids) == plain_tokens(target, prompt, 12)
    assert drafter.empty == (3 if length == 1 else 0)
    assert drafter._rows == {}


def test_several_sampled_answers_are_those_of_rows_on_their_own() -> None:
    target = small()
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12}
    together = Engine(target, make_drafter(target)).generate([PROMPT, PROMPT[:2]], n=3, **options)
    alone = Engine(target, make_drafter(target)).generate(PROMPT, n=3, **options)
    assert [one.token_ids for one in together[:3]] == [one.token_ids for one in alone]  # type: ignore[index, union-attr]


def test_a_row_whose_prompt_was_never_read_drafts_from_where_it_begins() -> None:
    target = small()
    drafter = make_drafter(target)
    assert drafter.propose([context(PROMPT)], [4])[0] == Draft(())
    tokens = [*PROMPT, 2, 0]
    features = features_of(target, tokens[:-1])
    drafter.observe([0], [Verdict((2, 0), 1, 2, ("drafter", "target"), features=features[-2:])])
    draft = drafter.propose([context(tokens)], [4])[0]
    network = drafter.runtime.network  # type: ignore[attr-defined]
    drafted: list[int] = []
    with torch.no_grad():
        for _ in range(4):
            drafted.append(int(naive_logits(network, tokens[-3:], features[-2:], drafted).argmax()))
    assert list(draft.token_ids) == drafted


@pytest.mark.parametrize("drafted", [False, True])
def test_what_is_read_again_replaces_what_was_read(drafted: bool) -> None:
    target = small()
    drafter = make_drafter(target)
    old, new = [*PROMPT, 0, 0, 0], [*PROMPT, 2, 5]
    for start in (1, 4):
        read_in(drafter, target, old)
        if drafted:  # so that the slots are run already
            drafter.propose([context(old)], [1])
        drafter.read([Reading(0, new, start, features_of(target, new[:-1])[start:])])
        assert drafter._rows[0].base == 0, "what stands before is kept"
        draft = drafter.propose([context(new)], [4])[0]
        assert list(draft.token_ids) == naive_chain(drafter.runtime.network, target, new, 4)  # type: ignore[attr-defined]


def test_a_row_and_its_copy_go_their_own_ways() -> None:
    target = small()
    drafter = make_drafter(target)
    read_in(drafter, target, PROMPT)
    drafter.read([Reading(1, PROMPT, len(PROMPT) - 1, source=0)])
    rows = [list(PROMPT), list(PROMPT)]
    for token in (0, 3, 5):
        for key, row in enumerate(rows):
            row.append((token + key) % 6)
            features = features_of(target, row[:-1])[-1:]
            drafter.observe([key], [Verdict((row[-1],), 0, 0, ("target",), features=features)])
        drafts = drafter.propose([context(row, key=key) for key, row in enumerate(rows)], [3, 3])
        for row, draft in zip(rows, drafts, strict=True):
            assert list(draft.token_ids) == naive_chain(drafter.runtime.network, target, row, 3)  # type: ignore[attr-defined]


def test_reset_forgets() -> None:
    target = small()
    drafter = make_drafter(target)
    for key in (1, 2):
        read_in(drafter, target, PROMPT, key)
    drafter.reset([1, 7])
    assert set(drafter._rows) == {2}
    drafter.reset()
    assert drafter._rows == {}


@pytest.mark.parametrize("length", [5, 30, 31, 32, 33, 34, 60])
def test_a_row_past_the_drafters_positions_begins_again(length: int) -> None:
    target = small()
    drafter = make_drafter(target, max_positions=32)
    prompt = [i % 6 for i in range(length)]
    row = make_row(target, 0, prompt, stop=StopParams(max_new_tokens=90))
    decode_rows(target, drafter, [row], 4)
    assert row.output_ids == plain_tokens(target, prompt, 90)
    assert row.counters.drafts > 20


def test_features_are_the_targets_at_the_tokens_kept() -> None:
    target = small()
    drafter = mixed(target)
    drafter.capture = CAPTURE
    rows = [make_row(target, i, PROMPT[: 2 + i], stop=StopParams(max_new_tokens=9 + i)) for i in range(3)]
    decode_rows(target, drafter, rows, 3)
    for row in rows:
        prompt = [reading for reading in drafter.readings if reading.key == row.key]
        rounds = [verdict.features for key, verdict in drafter.observed if key == row.key]
        found = torch.cat([*(reading.features for reading in prompt), *rounds])
        assert torch.equal(found, features_of(target, row.token_ids[:-1]))


def test_without_capture_nothing_is_read() -> None:
    target = small()
    drafter = mixed(target)
    decode_rows(target, drafter, [make_row(target, 0, PROMPT)], 3)
    assert drafter.readings == []
    assert all(verdict.features is None for _, verdict in drafter.observed)


# Failure.


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=1)])
def test_a_draft_of_broken_weights_is_named(params: SamplingParams) -> None:
    target = small()
    drafter = make_drafter(target)
    with torch.no_grad():
        drafter.runtime.network.norm.weight.fill_(torch.nan)  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteError, match=r"not finite|is nan"):
        decode_rows(target, drafter, [make_row(target, 0, PROMPT, params)], 3)
