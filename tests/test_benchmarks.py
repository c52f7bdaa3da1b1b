"""What the benchmark scripts compute: statistics, tables, prompts, files, and the comparison of two decodings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from benchmarks.ablations import choose, make_arms
from benchmarks.common import JsonlWriter
from benchmarks.heads_alike import Told
from benchmarks.identity import Recorder, Remembering, Run, decode, differences
from benchmarks.native_vs_hf import is_near_tie
from benchmarks.prompts import Prompt, own_prompts, read_prompts, sample
from slimtier.drafters.base import DraftContext
from slimtier.drafters.model import ModelDrafter
from slimtier.engine import Engine
from slimtier.sampling import Noise
from slimtier.types import SamplingParams
from tests.drafters.eagle.drafts import make_drafter
from tests.stubs import StubTarget, plain_tokens


def test_a_file_of_rows_gets_its_name_when_all_went_well(tmp_path):
    path = tmp_path / "results" / "x.jsonl"
    with JsonlWriter(path, {"seed": 1}) as out:
        out.write("row", value=2)
        assert not path.exists()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"kind": "provenance", "seed": 1},
        {"kind": "row", "value": 2},
    ]
    with pytest.raises(TypeError, match="JSON serializable"), JsonlWriter(path, {"seed": 2}) as out:
        out.write("row", value={3})
    assert json.loads(path.read_text().splitlines()[0])["seed"] == 1
    assert len((tmp_path / "results" / "x.jsonl.part").read_text().splitlines()) == 1


def test_prompts_are_sampled_by_category_and_seed(tmp_path):
    lines = [
        json.dumps({"question_id": i, "category": category, "turns": [f"{category} {i}", "second"]})
        for i, category in enumerate(["a"] * 5 + ["b"] * 5 + ["c"])
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines))
    prompts = read_prompts(file)
    assert prompts[6] == Prompt("6", "b", "b 6")
    chosen = sample(prompts, 2, seed=1)
    assert [prompt.category for prompt in chosen] == ["a", "b", "c", "a", "b"]
    assert sample(prompts, 2, seed=1) == chosen
    assert any(sample(prompts, 2, seed=seed) != chosen for seed in range(2, 6))
    assert {prompt.category for prompt in sample(prompts, 9, 1, ["b"])} == {"b"}
    with pytest.raises(SystemExit, match="no category 'd'"):
        sample(prompts, 2, 1, ["d"])
    assert len({prompt.text for prompt in own_prompts()}) == 60


def test_a_head_that_is_told_what_it_drafted_costs_what_it_costs_and_changes_nothing():
    target, prompt = StubTarget(6), [3, 1, 4, 1, 5]
    answer = plain_tokens(target, prompt, 60)
    lengths = []
    for seed in range(2):  # other weights, the same drafts
        made = make_drafter(target, seed=seed)
        told = Told(made.runtime, made.capture)
        told.answer = [*prompt, *answer]
        found = Engine(target, told, num_speculative_tokens=5).generate(prompt, max_new_tokens=60)
        assert list(found.token_ids) == answer
        lengths.append(found.stats.mean_acceptance_length)
    assert 1.5 < lengths[0] == lengths[1] < 4


def test_every_group_of_ablations_has_the_base():
    arms = make_arms(576, 49152)
    groups = {arm.group for arm in arms}
    assert sorted(arm.group for arm in arms if not arm.settings) == sorted(groups)
    assert len({(arm.group, arm.name) for arm in arms}) == len(arms)
    assert {"rank", "init", "loss", "K", "head"} <= groups


def test_arms_are_chosen_by_group_and_by_name():
    arms = make_arms(576, 49152)
    assert choose(arms, None, None) == arms
    assert [arm.name for arm in choose(arms, ["head"], ["full", "slim"])] == ["full", "slim"]
    with pytest.raises(SystemExit, match="no 'heads' among the arms"):
        choose(arms, ["heads"], None)
    with pytest.raises(SystemExit, match="no 'fll' among the arms"):
        choose(arms, ["head"], ["fll"])
    with pytest.raises(SystemExit, match="leave out --groups"):
        choose(arms, ["rank"], ["full"])


def test_near_ties_are_gaps_that_the_difference_explains():
    gaps = {"native_gap": 1e-4, "hf_gap": 2e-4}
    assert is_near_tie(gaps, 1e-4)
    assert not is_near_tie({**gaps, "hf_gap": 3e-4}, 1e-4)


PROMPT = [3, 5, 7, 9]


@pytest.fixture
def target():
    return StubTarget(vocab_size=48, order=2)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.8, seed=5, coupling="gumbel")], ids=["greedy", "gumbel"]
)
def test_speculation_on_the_stub_is_identical_and_a_changed_logit_is_found(target, sampling):
    engine = Engine(Recorder(target))
    plain = decode(engine, PROMPT, 24, sampling)
    assert len(plain.token_ids) == len(plain.hashes) == 24
    drafter = Remembering(ModelDrafter(StubTarget(vocab_size=48, order=2)))
    engine.drafter = drafter
    for length in (8, 1, 5):
        engine.num_speculative_tokens = length
        run = decode(engine, PROMPT, 24, sampling)
        assert run.mean_acceptance_length > 1.5  # the drafter is the target's twin
        assert list(differences(plain, run)) == []

    honest = target.head

    def slightly_wrong(hidden, reduce="logits"):
        if len(hidden) > 1:  # what no test of tokens would see
            hidden = hidden.clone()
            hidden[:, 0] -= 1e-6 + hidden[:, 0].abs() * 1e-6
        return honest(hidden, reduce)

    target.head = slightly_wrong
    found = list(differences(plain, decode(engine, PROMPT, 24, sampling)))
    assert [each["what"] for each in found] == ["logits"]


def test_differences_are_named_where_they_begin():
    plain = Run((1, 2, 3), (b"a", b"b", b"c"), 1.0)
    assert list(differences(plain, plain)) == []
    wrong_token = replace(plain, token_ids=(1, 9, 3))
    assert list(differences(plain, wrong_token)) == [{"what": "token", "position": 1, "wanted": 2, "got": 9}]
    wrong_logits = replace(wrong_token, hashes=(b"a", b"x", b"y"))
    assert list(differences(plain, wrong_logits)) == [{"what": "logits", "position": 1}]
    assert list(differences(plain, Run((1, 2), (b"a", b"b"), 1.0))) == [{"what": "length", "position": 2}]


def test_a_wrong_fused_argmax_is_an_error(target):
    recorder = Recorder(target)
    honest = target.head
    target.head = lambda hidden, reduce="logits": [0] * len(hidden) if reduce == "argmax" else honest(hidden)
    cache = recorder.begin(1, 16)
    hidden, _ = recorder.forward(PROMPT, cache, [4])
    assert honest(hidden, "argmax") != [0, 0, 0, 0]
    with pytest.raises(AssertionError, match="fused argmax"):
        recorder.head(hidden, "argmax")


def test_a_remembered_draft_is_what_the_drafter_gives_at_each_length():
    honest = ModelDrafter(StubTarget(vocab_size=48, order=2))
    remembering = Remembering(ModelDrafter(StubTarget(vocab_size=48, order=2)))
    noise = Noise(0, "drafter")
    for history in (PROMPT, [*PROMPT, 1], PROMPT):
        for limit in (8, 3, 1, 0):
            context = DraftContext(limit, history, 4, SamplingParams(), noise)
            assert remembering.propose([context], [limit]) == honest.propose([context], [limit])


def test_the_recorder_hashes_the_logits_row_by_row(target):
    recorder = Recorder(target)
    cache = recorder.begin(1, 16)
    hidden, _ = recorder.forward(PROMPT, cache, [4])
    logits = recorder.head(hidden)
    whole = dict(recorder.hashes)
    recorder.hashes.clear()
    cache.crop([0])
    for token in PROMPT:
        hidden, _ = recorder.forward([token], cache, [1])
        recorder.head(hidden, "argmax")
    assert recorder.hashes == whole
    assert len(set(whole.values())) == len({tuple(row) for row in logits.tolist()})
    assert sorted(whole) == [0, 1, 2, 3]
    assert torch.isfinite(logits).all()
