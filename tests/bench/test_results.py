"""Results files are read strictly, alone and together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.bench.results import from_rows, read_results
from slimtier.errors import InputError
from tests.bench.made_results import BASELINE, CATEGORIES, SYSTEMS, Row, made_rows, write_rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows(2)


def changed(rows: list[Row], kind: str, /, **fields: Any) -> list[Row]:
    """The rows with fields of the first one of that kind replaced."""
    at = next(number for number, row in enumerate(rows) if row["kind"] == kind)
    return [*rows[:at], {**rows[at], **fields}, *rows[at + 1 :]]


def test_everything_is_read(rows: list[Row], tmp_path: Path) -> None:
    results = read_results([write_rows(tmp_path / "a.jsonl", rows)])
    (source,) = results.sources
    assert (source.file, source.seconds, source.torn) == ("a.jsonl", 1834.0, False)
    assert source.provenances[0]["cpu"] == "Made-up CPU"
    assert (results.run.model, results.run.baseline, results.run.temperature) == ("smollm2-135m", BASELINE, 0.0)
    assert [system.name for system in results.systems][:2] == [BASELINE, "slimtier"]
    assert {system.state for system in results.systems} == {"ready", "skipped", "failed"}
    prompts = 2 * sum(map(len, CATEGORIES.values()))
    assert len(results.answers) == prompts * (len(SYSTEMS) + 1)
    assert sum(answer.control for answer in results.answers) == prompts
    assert len(results.failures) == len(results.exactness) == 1
    assert results.scores[0].floor == {"accuracy": 0.0}
    ours = next(answer for answer in results.answers if answer.system == "slimtier")
    assert len(ours.output.deciders) == len(ours.output.pieces) == ours.output.num_output_tokens
    assert ours.stats["num_accepted_tokens_per_pos"][0] > 0
    assert from_rows(rows).answers == results.answers


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("answer", {"tokens_per_s": "fast"}, "tokens_per_s 'fast', not a finite number"),
        ("answer", {"tokens_per_s": float("nan")}, "tokens_per_s nan, not a finite number"),
        ("answer", {"tokens_per_s": True}, "tokens_per_s True, not a finite number"),
        ("answer", {"token_ids": None}, "has no token_ids"),
        ("answer", {"token_ids": [1, "2"]}, "token_ids that are not all whole numbers"),
        ("answer", {"repeat": 0.5}, "repeat 0.5, not a whole number"),
        ("answer", {"control": 1}, "control 1, not true or false"),
        ("answer", {"pieces": ["not", " this"]}, "pieces that joined are not its text"),
        ("answer", {"deciders": ["target"]}, "1 deciders: one of each a token"),
        ("answer", {"time_split_s": {"drafting": 1.0}}, "time_split_s.drafting, which is none of draft_layer"),
        ("answer", {"stats": {"num_drafts": float("inf")}}, "num_drafts inf, not a finite number"),
        ("answer", {"stats": {"num_accepted_tokens_per_pos": ["x"]}}, "not all whole numbers"),
        ("answer", {"scores": {"rouge1": "x"}}, "scores.rouge1 'x'"),
        ("system", {"state": "asleep"}, "state 'asleep', which is none of ready"),
        ("system", {"options": []}, "options [], not an object"),
        ("run", {"schema": 2}, "has schema 2, and this slimtier reads schema 1: upgrade slimtier"),
        ("run", {"schema": 0}, "has schema 0, and this slimtier reads schema 1: run the benchmark again"),
        ("run", {"baseline": None}, "has no baseline"),
        ("run", {"config": {"temperature": "warm"}}, "temperature 'warm'"),
        ("likelihood", {"systems": "all"}, "systems 'all', not a list"),
        ("failure", {"kind": "mishap"}, "kind 'mishap', which is none of provenance"),
        ("end", {"seconds": None}, "has no seconds"),
    ],
)
def test_a_malformed_row_is_named_with_its_line(
    rows: list[Row], tmp_path: Path, kind: str, fields: Row, words: str
) -> None:
    wrong = changed(rows, kind, **fields)
    line = next(number for number, (a, b) in enumerate(zip(rows, wrong, strict=True), 1) if a is not b)
    path = write_rows(tmp_path / "a.jsonl", wrong)
    with pytest.raises(InputError, match=r"^line \d+ of .*a\.jsonl has ") as caught:
        read_results([path])
    assert str(caught.value).startswith(f"line {line} of {path} ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", '"text"', "7"])
def test_a_row_is_an_object(rows: list[Row], tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(rows[0])}\n{text}\n")
    with pytest.raises(InputError, match=r"line 2 of .* is not a JSON object: mend or remove the line"):
        read_results([path])


def test_an_answer_that_is_given_twice(rows: list[Row]) -> None:
    at = next(number for number, row in enumerate(rows) if row["kind"] == "answer")
    with pytest.raises(InputError, match=f"line {len(rows) + 1} of the rows answers what line {at + 1} answers"):
        from_rows([*rows, rows[at]])


def test_what_is_no_results_file(rows: list[Row], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*missing\.jsonl: No such file"):
        read_results([tmp_path / "missing.jsonl"])
    with pytest.raises(InputError, match="no results file is named"):
        read_results([])
    with pytest.raises(InputError, match="the rows has no run row"):
        from_rows(rows[:1])
    with pytest.raises(InputError, match="rows of 'slimtier' but no system row"):
        from_rows([row for row in rows if row["kind"] != "system" or row["system"] != "slimtier"])


def test_a_last_line_that_was_cut_off_is_left_out(rows: list[Row], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", rows[:-1])
    whole = read_results([path])
    assert whole.sources[0].seconds is None
    path.write_bytes(path.read_bytes() + json.dumps(rows[20]).encode()[:-40] + "é".encode()[:1])
    torn = read_results([path])
    assert torn.sources[0].torn
    assert torn.answers == whole.answers


def test_only_a_last_line_is_forgiven(rows: list[Row], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", rows)
    content = path.read_bytes()
    for broken, line in ((content + b'{"kind": \n', len(rows) + 1), (b'{"kind"\n' + content, 1)):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=f"line {line} of .* is not JSON"):
            read_results([path])
    path.write_bytes(b'{"kind"\n' + content.removesuffix(b"\n"))
    with pytest.raises(InputError, match="line 1 of"):
        read_results([path])


def test_a_run_that_went_on_says_twice_what_became_of_a_system(rows: list[Row]) -> None:
    system = next(row for row in rows if row["kind"] == "system" and row["system"] == "slimtier")
    failed = {**system, "state": "failed", "reason": "no memory"}
    results = from_rows([*rows[:2], failed, *rows[2:]])
    assert [each.state for each in results.systems if each.name == "slimtier"] == ["ready"]
    assert len(from_rows([rows[0], *rows]).sources[0].provenances) == 2


def test_files_of_one_model_are_taken_together(rows: list[Row], tmp_path: Path) -> None:
    first = write_rows(tmp_path / "a.jsonl", rows)
    skipped = [changed([row], "system", state="skipped", reason="x")[0] if row["kind"] == "system" else row
               for row in made_rows(2, seed=1) if row["kind"] != "answer"]  # fmt: skip
    second = write_rows(tmp_path / "b.jsonl", skipped)
    both = read_results([second, first])
    assert [source.file for source in both.sources] == ["b.jsonl", "a.jsonl"]
    assert {answer.place.source for answer in both.answers} == {1}
    assert {system.state for system in both.systems if system.name in {made.name for made in SYSTEMS}} == {"ready"}


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("run", {"model": "gemma3-270m"}, "a.jsonl has the model 'smollm2-135m' and .*b.jsonl 'gemma3-270m'"),
        ("run", {"baseline": "slimtier"}, "a.jsonl has the baseline 'slimtier plain' and .*b.jsonl 'slimtier'"),
        ("run", {"tasks": {"gsm8k": 2}}, "version 1 of the task gsm8k and .*b.jsonl version 2"),
        ("system", {"options": {"drafter": "ngram"}}, "call different systems 'slimtier plain'"),
    ],
)
def test_files_that_do_not_belong_together(rows: list[Row], tmp_path: Path, kind: str, fields: Row, words: str) -> None:
    first = write_rows(tmp_path / "a.jsonl", rows)
    second = write_rows(tmp_path / "b.jsonl", changed(rows, kind, **fields))
    with pytest.raises(InputError, match=words) as caught:
        read_results([first, second])
    assert "report them apart" in str(caught.value)


def test_rows_that_no_number_is_made_of_are_let_be(rows: list[Row]) -> None:
    more = [{"kind": "divergence", "position": 3}]
    assert from_rows([*rows, *more]).answers == from_rows(rows).answers
