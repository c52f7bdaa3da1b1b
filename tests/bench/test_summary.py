"""Numbers, qualities and sentences from rows whose numbers are chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slimtier.bench.findings import Findings, find, plain_of
from slimtier.bench.quality import LIKELIHOOD, Quality, qualities, shown
from slimtier.bench.results import Results, from_rows, read_results
from slimtier.bench.statistics import Interval, bootstrap_difference
from slimtier.bench.summary import ALL, Answers, Group, summarise
from tests.bench.made_results import BASELINE, Row, made_rows, write_rows

PLAIN = {"drafter": "none"}


def head(*systems: tuple[str, str, Row], **run: Any) -> list[Row]:
    """The rows before the answers; the first system is the baseline."""
    baseline = systems[0][0]
    fields = {"schema": 1, "model": "m", "config": {}, "tasks": {"t": 1}, "baseline": baseline, "prompts": 2, **run}
    rows = [{"kind": "provenance", "cpu": "c", "cores": 2}, {"kind": "run", **fields}]
    for name, type_, options in systems:
        rows.append({"kind": "system", "system": name, "type": type_, "options": options, "state": "ready"})
    return rows


def answer(system: str, item: str, speed: float | None, **fields: Any) -> Row:
    return {
        "kind": "answer", "system": system, "task": "t", "item": item, "category": "t", "repeat": 0,
        "num_prompt_tokens": 5, "num_output_tokens": 10, "token_ids": [1, 2], "text": "a", "tokens_per_s": speed,
        "end_to_end_tokens_per_s": speed, "time_to_first_token_s": 0.1, "same_as_baseline": True, **fields,
    }  # fmt: skip


TWO = (("plain", "slimtier", PLAIN), ("fast", "slimtier", {"drafter": "auto"}))


def sentences(rows: list[Row]) -> Findings:
    results = from_rows(rows)
    answers = Answers(results)
    return find(results, summarise(results, answers), answers, qualities(results, answers))


def texts(findings: Any) -> str:
    return "\n".join(f"{one.figure} | {one.text}" for one in findings)


def test_ratios_are_of_the_same_prompt_and_repeat() -> None:
    rows = head(*TWO)
    for item, plain, factor in (("a", 10.0, 2.0), ("b", 100.0, 3.0), ("c", 50.0, 4.0)):
        for repeat, odd in ((0, 1.0), (1, 1.1), (2, 0.9)):
            rows.append(answer("plain", item, plain * (1 + repeat), repeat=repeat))
            rows.append(answer("fast", item, plain * (1 + repeat) * factor * odd, repeat=repeat))
    rows.append(answer("fast", "d", 1000.0))  # which the baseline did not answer
    summary = summarise(from_rows(rows))
    line = summary.line("fast")
    assert line is not None
    assert line.speed.speed_up == pytest.approx((3.0, 2.0, 4.0))
    assert (line.prompts, line.answers) == (4, 10)
    assert line.speed.tokens_per_s == pytest.approx(370.0)
    baseline = summary.line("plain")
    assert baseline is not None
    assert baseline.speed.speed_up == (1.0, 1.0, 1.0)
    assert summary.control is None


def test_speeds_are_compared_within_a_file_only(tmp_path: Any) -> None:
    paths = []
    for name, plain in (("a", 10.0), ("b", 1000.0)):
        rows = [*head(*TWO), answer("plain", "x", plain), answer("fast", "x", 2 * plain)]
        paths.append(write_rows(tmp_path / f"{name}.jsonl", rows))
    results = read_results(paths)
    line = summarise(results).line("fast")
    assert line is not None
    assert line.speed.speed_up == (2.0, 2.0, 2.0)
    assert line.prompts == 1


def test_a_speed_that_is_not_told_is_left_out() -> None:
    rows = [*head(*TWO), answer("plain", "a", 10.0), answer("fast", "a", None), answer("plain", "b", 10.0),
            answer("fast", "b", 15.0)]  # fmt: skip
    line = summarise(from_rows(rows)).line("fast")
    assert line is not None
    assert line.speed.speed_up == (1.5, 1.5, 1.5)
    assert line.speed.tokens_per_s == 15.0
    none = summarise(from_rows([*head(*TWO), answer("fast", "a", None)]))
    assert none.line("plain") is None
    assert none.lines[0].speed.speed_up is None


def test_work_is_counted_over_all_answers() -> None:
    stats = [
        {"num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 4, "num_accepted_tokens_per_pos": [2, 1, 1],
         "num_examined_tokens": 5, "num_target_calls": 3},
        {"num_drafts": 8, "num_draft_tokens": 8, "num_accepted_tokens": 1, "num_accepted_tokens_per_pos": [1],
         "num_examined_tokens": 5, "num_target_calls": 9},
    ]  # fmt: skip
    split = [{"draft": 1.0, "verify": 3.0}, {"draft": 1.0, "verify": 1.0}]
    rows = head(*TWO)
    for number, item in enumerate("ab"):
        more = {"stats": stats[number], "time_split_s": split[number], "peak_memory_bytes": 100 * (number + 1)}
        rows += [answer("plain", item, 10.0), answer("fast", item, 20.0, **more, same_as_baseline=bool(number))]
    rows.append(answer("fast", "c", 20.0))  # which tells nothing
    line = summarise(from_rows(rows)).line("fast")
    assert line is not None
    work = line.work
    assert work.mean_acceptance_length == pytest.approx(1 + 5 / 10)
    assert work.acceptance_rate == pytest.approx(5 / 14)
    assert work.rejection_rate == pytest.approx(1 - 5 / 10)
    assert work.target_calls_per_token == pytest.approx(12 / 20)
    assert work.by_position == pytest.approx((3 / 10, 1 / 10, 1 / 10))
    assert work.time_split_s == {"draft": 2.0, "verify": 4.0}
    assert (work.split_rounds, work.split_tokens) == (12, 20)
    assert line.peak_memory_bytes == 200
    assert line.same_share == pytest.approx(2 / 3)
    plain = summarise(from_rows(rows)).line("plain")
    assert plain is not None
    assert plain.work.mean_acceptance_length is None
    assert plain.work.by_position == ()


def test_groups_and_their_leaves() -> None:
    summary = summarise(from_rows(made_rows(2)))
    own = [Group("own", category) for category in ("code", "rewriting", "writing")]
    assert summary.groups == (ALL, Group("gsm8k"), Group("own"), *own, Group("summarization"))
    assert summary.leaves == (Group("gsm8k"), *own, Group("summarization"))
    assert Group("own", "code").name == "own · code"
    quick = summarise(from_rows(made_rows(2)), groups=False)
    assert quick.lines == summary.of(ALL)
    assert summary.failures == {"llama.cpp plain": 1}


@pytest.mark.parametrize(("drift", "noisy"), [(1.0, False), (1.04, False), (1.2, True), (0.8, True)])
def test_the_control_tells_a_noisy_machine(drift: float, noisy: bool) -> None:
    rows = made_rows(6, noise=0.001, drift=drift)
    control = summarise(from_rows(rows)).control
    assert control is not None
    assert control.noisy is noisy
    assert control.ratio.value == pytest.approx(drift, rel=0.01)
    assert len(control.by_prompt) == 30
    assert ("too noisy" in texts(sentences(rows).doubts)) is noisy


def test_differences_are_means_over_pairs() -> None:
    assert bootstrap_difference([1.0, 0.0, None, 1.0], [0.0, 0.0, 1.0, None]) == (0.5, 0.0, 1.0)
    assert bootstrap_difference([], []) is None


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(0.0, 0.0, 0.0), "the same"),
        (Interval(0.03, 0.01, 0.05), "better"),
        (Interval(-0.03, -0.05, -0.01), "worse"),
        (Interval(0.0, -0.019, 0.01), "not worse"),
        (Interval(0.0, -0.021, 0.01), "undecided"),
        (None, None),
    ],
)
def test_verdicts_are_held_to_the_margin(interval: Interval | None, verdict: str | None) -> None:
    quality = Quality("s", "t", "rouge1", 0.3, 0.1, True, interval, 10)
    assert quality.verdict == verdict
    assert replace(quality, pairs=9).verdict == (verdict if verdict in ("the same", "worse", None) else "undecided")
    if verdict == "undecided":
        assert replace(quality, measure=LIKELIHOOD).verdict == "not worse"  # whose margin is wider


def test_a_score_at_its_floor_is_uninformative_and_likelihood_stands_in() -> None:
    found = qualities(from_rows(made_rows(6)))
    assert {(row.task, row.measure): row.informative for row in found if row.system == BASELINE} == {
        ("gsm8k", "accuracy"): False, ("gsm8k", LIKELIHOOD): True, ("own", LIKELIHOOD): True,
        ("summarization", "rouge1"): True, ("summarization", "rougeL"): True, ("summarization", LIKELIHOOD): True,
    }  # fmt: skip
    assert {(row.task, row.measure) for row in shown(found)} == {
        ("gsm8k", LIKELIHOOD), ("own", LIKELIHOOD), ("summarization", "rouge1"),
    }  # fmt: skip
    lossy = {row.measure: row for row in found if (row.system, row.task) == ("slimtier lenient", "summarization")}
    assert lossy["rouge1"].verdict == "worse"
    assert lossy["rouge1"].pairs == 6
    assert lossy["rouge1"].value == pytest.approx(0.26)
    assert {row.verdict for row in found if row.system == "slimtier"} == {"the same"}


def test_sentences_for_and_against() -> None:
    found = sentences(made_rows(12))
    assert found.best == "slimtier"  # lenient is faster, and lossy
    favour, against, doubts = texts(found.favour), texts(found.against), texts(found.doubts)
    assert "the fastest of 2 lossless slimtier systems here, decodes 1." in favour
    assert "than transformers plain" in favour
    assert "100 % | Every answer of slimtier is token for token that of slimtier plain" in favour
    assert "0 defects |" in favour
    assert "slimtier ngram is slower than slimtier plain on own · writing" in against
    assert "slimtier lenient is lossy by its rule" in against
    assert "slimtier lenient is worse than the baseline on " in against
    assert "times the memory of llama.cpp plain" in against
    assert "The first token of slimtier takes" in against
    assert "skipped | vllm eagle3: vllm is not installed; install it: pip install vllm." in doubts
    assert "failed | flashspec: the worker ended" in doubts
    assert "llama.cpp plain failed on one request" in doubts


def test_whoever_is_faster_is_told_first() -> None:
    rows = head(*TWO, ("peer", "vllm", {}))
    for number in range(12):
        item, odd = f"i{number}", 1 + number / 1000
        rows += [answer("plain", item, 10.0), answer("fast", item, 15.0 * odd), answer("peer", item, 30.0)]
    found = sentences(rows)
    assert found.against[0].figure == "1.99×"
    assert found.against[0].text.startswith("peer decodes 1.99 times as fast as fast, our fastest")
    assert "peer" not in texts(found.favour)


def test_slower_than_plain_on_the_whole() -> None:
    rows = head(*TWO)
    for number in range(12):
        rows += [answer("plain", str(number), 10.0), answer("fast", str(number), 8.0 + number / 100)]
    found = sentences(rows)
    assert "fast is slower than plain on the whole" in texts(found.against)
    assert found.best == "plain"
    assert "decodes" not in texts(found.favour)


def test_no_difference_is_told_as_that() -> None:
    rows = head(*TWO, ("peer", "vllm", {}))
    for number in range(12):
        speed = 15.0 + (-1) ** number
        rows += [
            answer("plain", str(number), 15.0),
            answer("fast", str(number), speed),
            answer("peer", str(number), 15.0),
        ]
    against = texts(sentences(rows).against)
    assert "peer is not shown to be slower than" in against
    assert "fast is not shown to be faster than plain on t" in against or sentences(rows).best == "plain"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:-1], "run that is not complete"),
        (lambda rows: [{**rows[0], "dirty": True}, *rows[1:]], "differs from its commit"),
        (lambda rows: [{**rows[0], "cpu": "other"}, *rows], "different machines"),
        (lambda rows: [row for row in rows if not row.get("control")], "did not answer twice"),
        (lambda rows: [row for row in rows if row.get("system") != BASELINE or row["kind"] == "system"], "no speed-up"),
        (lambda rows: [{**row, "idle_cores": 0.7} if row.get("system") == "slimtier" else row for row in rows],
         "kept computing while others were measured"),
        (lambda rows: [{**row, "loop_share": 0.4} if row["kind"] == "answer" else row for row in rows], "looped text"),
    ],
)  # fmt: skip
def test_doubts(change: Any, words: str) -> None:
    rows = made_rows(2)
    assert words not in texts(sentences(rows).doubts)
    assert words in texts(sentences(change(rows)).doubts)


def test_few_prompts_are_doubted() -> None:
    rows = [*head(*TWO), answer("plain", "a", 10.0), answer("fast", "a", 20.0)]
    assert "1 prompt | Intervals from fewer than ten" in texts(sentences(rows).doubts)
    assert "fewer than ten" not in texts(sentences(made_rows(2)).doubts)


def test_answers_that_differ_are_told_at_temperature_0_only() -> None:
    rows = head(*TWO)
    for number in range(12):
        rows += [answer("plain", str(number), 10.0), answer("fast", str(number), 20.0, same_as_baseline=number != 3)]
    assert "8 % | fast is lossless by its rule, and 8 % of its answers" in texts(sentences(rows).against)
    warm = [{**row, "config": {"temperature": 0.7}} if row["kind"] == "run" else row for row in rows]
    assert "lossless by its rule" not in texts(sentences(warm).against)


def test_defects_are_against_us() -> None:
    rows = made_rows(2)
    broken = [{**row, "identical": 58, "defects": 2} if row["kind"] == "exactness" else row for row in rows]
    draws = {"kind": "draws", "accepts": "always", "draws": 9, "acceptance_rate": 1.0, "p_value": 1e-9,
             "verdict": "defect"}  # fmt: skip
    found = sentences([*broken, draws])
    assert found.against[0].figure == "2 of 60"
    assert "Sampled output is not the target's" in texts(found.against)
    assert "0 defects" not in texts(found.favour)


def test_without_ours_nothing_is_claimed() -> None:
    rows = [*head(("hf", "transformers", {}), ("vllm", "vllm", {})), answer("hf", "a", 1.0), answer("vllm", "a", 2.0)]
    found = sentences(rows)
    assert found.best is None
    assert texts(found.favour) == "none | Nothing in these results shows slimtier to be faster."
    assert "No slimtier system answered" in texts(found.against)


def three(many: int, fast: float, peer: float, *systems: tuple[str, str, Row]) -> list[Row]:
    """`plain` has speed 10 on every prompt."""
    rows = head(*(systems or (*TWO, ("peer", "vllm", {}))))
    speeds = {"plain": 10.0, "fast": fast, "peer": peer}
    return rows + [answer(name, str(item), speed) for item in range(many) for name, speed in speeds.items()]


def test_what_is_claimed_is_more_than_the_noise() -> None:
    rows = three(12, 10.8, 10.0)
    assert "fast decodes 1.08 times as fast as plain, the baseline" in texts(sentences(rows).favour)
    again = [answer("plain", str(number), 9.1, control=True) for number in range(12)]
    found = sentences([*rows, *again])
    assert texts(found.favour[:1]) == "none | Nothing in these results shows slimtier to be faster."
    assert "fast is not shown to be faster than plain on the whole" in texts(found.against)
    assert "12 prompts, noise 9 %" in texts(found.against)
    assert "too noisy" in texts(found.doubts)


@pytest.mark.parametrize(("many", "shows"), [(5, False), (6, True)])
def test_few_prompts_show_nothing(many: int, shows: bool) -> None:
    found = sentences(three(many, 9.0, 30.0))
    assert ("fast is slower than plain on the whole" in texts(found.against)) is shows
    assert ("peer decodes 3.00 times as fast as plain, our fastest" in texts(found.against)) is shows
    assert ("peer is not shown to be slower than plain" in texts(found.against)) is not shows


def test_a_baseline_that_drafts_is_held_to_plain_too() -> None:
    turned = (TWO[1], TWO[0], ("peer", "vllm", {}))
    found = sentences(three(12, 20.0, 1.0, *turned))
    assert found.best == "fast"
    assert "fast decodes 2.00 times as fast as plain, its own plain decoding" in texts(found.favour)
    assert "fast is slower than plain on the whole" in texts(sentences(three(12, 5.0, 1.0, *turned)).against)


def test_plain_is_that_of_the_same_weights() -> None:
    systems = (
        ("hf", "transformers", {}),
        ("plain q8", "slimtier", {"drafter": "none", "precision": "q8"}),
        ("q8", "slimtier", {"drafter": "auto", "precision": "q8"}),
        ("q4", "slimtier", {"drafter": "auto", "precision": "q4"}),
    )
    results: Results = from_rows([*head(*systems), *(answer(name, "a", 1.0) for name, _, _ in systems)])
    summary = summarise(results)
    assert [plain_of(summary, system) for system in results.systems] == [None, None, "plain q8", "hf"]
