"""What the benchmark scripts compute: statistics, tables, prompts, files, and the comparison of two decodings."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.common import JsonlWriter, bootstrap_ratio, loop_share, markdown_table, median, model_slug, ratio_cell
from benchmarks.identity import Recorder, Remembering, Run, decode, differences
from benchmarks.native_vs_hf import is_near_tie
from benchmarks.peer_tables import LLAMA, TRANSFORMERS, Answers, gains_table, systems_table
from benchmarks.peers.serve import Clock
from benchmarks.prompts import Prompt, own_prompts, read_prompts, sample
from benchmarks.worker import MissingPeer, Worker
from slimtier.drafters.base import DraftContext
from slimtier.drafters.model import ModelDrafter
from slimtier.engine import Engine
from slimtier.sampling import Noise
from slimtier.types import SamplingParams
from tests.stubs import StubTarget


def test_loop_share_counts_the_tokens_of_repeated_eight_grams():
    assert loop_share(list(range(1, 9)) * 3) == 16 / 24
    assert loop_share(list(range(24))) == 0.0
    assert loop_share([]) == 0.0
    assert loop_share([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]) == 0.0  # a repeated seven-gram is no loop
    assert loop_share([9] * 10) == 0.9  # the second eight-gram covers all but the first token
    assert loop_share([1, 2, 9, 1, 2, 8, 1, 2], size=2) == 4 / 8


def test_bootstrap_ratio_is_paired_and_leaves_out_what_is_missing():
    below = [1.0, 10.0, 100.0, 1000.0, 5.0]
    assert bootstrap_ratio([2 * value for value in below], below) == (2.0, 2.0, 2.0)
    assert bootstrap_ratio([2.0, None, 9.0], [1.0, 1.0, None]) == (2.0, 2.0, 2.0)
    assert bootstrap_ratio([None], [1.0]) is None
    above = list(np.random.default_rng(0).normal(3.0, 0.5, 40))
    ratio, low, high = bootstrap_ratio(above, [1.0] * 40, seed=1)
    assert ratio == pytest.approx(float(np.median(above)))
    assert 2.5 < low < ratio < high < 3.5
    assert bootstrap_ratio(above, [1.0] * 40, seed=1) == (ratio, low, high)
    with pytest.raises(ValueError, match="zip"):
        bootstrap_ratio([1.0], [1.0, 2.0])


def test_the_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        ratios = np.exp(rng.normal(0.0, 0.3, 25))
        _, low, high = bootstrap_ratio(ratios.tolist(), [1.0] * 25, draws=400)
        covered += low <= 1.0 <= high
    assert 0.88 <= covered / 200 <= 1.0


def test_tables_and_cells():
    table = markdown_table(["a", "b|"], [[1.23456, None], [1234.5, "x|y"]])
    assert table.splitlines() == ["| a | b| |", "| --- | --- |", "| 1.23 |  |", "| 1234 | x\\|y |"]
    assert ratio_cell((1.5, 1.25, 1.754)) == "1.50× [1.25, 1.75]"
    assert ratio_cell(None) == ""
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
    assert model_slug("org/name") == "org--name"
    assert model_slug("/some/where/x.gguf") == "x.gguf"


def answer(system, category, speed, same=True):
    return {
        "system": system, "category": category, "tokens_per_s": speed, "end_to_end_tokens_per_s": speed / 2,
        "time_to_first_token_s": 0.1, "same_as_native_plain": same, "same_as_own_plain": True, "loop_share": 0.0,
    }  # fmt: skip


def test_the_readme_tables_pair_systems_prompt_by_prompt():
    speeds = {TRANSFORMERS: (8.0, 4.0), "native q8 none": (40.0, 40.0), "native q8 ngram": (40.0, 80.0)}
    rows = [
        answer(system, category, speed, same=system != TRANSFORMERS)
        for system, pair in speeds.items()
        for category, speed in zip(("rag", "summarization"), pair, strict=True)
    ]
    answers = Answers(rows)
    lines = systems_table(answers).splitlines()
    assert len(lines) == 2 + 3
    cells = dict(zip(lines[0].split("|"), lines[4].split("|"), strict=True))
    assert cells[" system "].strip() == "native q8 ngram"
    assert cells[" ÷ transformers "].strip().startswith("12.50× [5.00")  # 5 and 20
    assert cells[" ÷ llama.cpp "].strip() == ""
    assert cells[" tokens as native plain "].strip() == "2/2"
    assert "0/2" in lines[2]
    gains = gains_table(answers, [("native q8 ngram", "native q8 none"), ("llama.cpp prompt lookup", LLAMA)])
    assert [line.split("|")[1:3] for line in gains.splitlines()[2:]] == [
        [" rag ", " 1.00× [1.00, 1.00] "],
        [" summarization ", " 2.00× [2.00, 2.00] "],
        [" summarization and rag ", " 1.50× [1.00, 2.00] "],
        [" all ", " 1.50× [1.00, 2.00] "],
    ]


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


def test_the_clock_counts_the_tokens_after_the_first_block(monkeypatch):
    times = iter([10.0, 12.0, 13.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = Clock()
    for block in ([1, 2], [3], [4, 5, 6]):
        clock.block(block)
    report = clock.report(more=1)
    assert report == {
        "token_ids": [1, 2, 3, 4, 5, 6], "tokens_per_s": 2.0, "end_to_end_tokens_per_s": 1.5,
        "time_to_first_token_s": 2.0, "more": 1,
    }  # fmt: skip


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('no llama_cpp here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        Worker("llama", sys.executable) as worker,
        pytest.raises(MissingPeer, match=r"no llama_cpp here.*pip install llama-cpp-python"),
    ):
        worker.ask("load", path="x", threads=1, context=1)


def test_a_failing_worker_says_why_and_lives_on():
    with Worker("llama", sys.executable) as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
                worker.ask("nothing")
        assert (worker.idle_use(0.05) or 0.0) < 0.5


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
