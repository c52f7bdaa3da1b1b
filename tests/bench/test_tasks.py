"""Tasks: which rows they read, and what an answer is worth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.bench.asked import own_items
from slimtier.bench.tasks import TASKS, task_of
from slimtier.bench.tasks.base import Item, find_file, read_items
from slimtier.bench.tasks.gsm8k import last_number
from slimtier.bench.tasks.humaneval import FunctionTests, code_of
from slimtier.errors import ConfigError, InputError

ROWS: dict[str, dict[str, Any]] = {
    "spec_bench": {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
    "mt_bench": {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
    "gsm8k": {"question": "How many?", "answer": "2 * 600 = <<2*600=1200>>1200\n#### 1,200"},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": 'import math\n\n\ndef half(x: int) -> int:\n    """Half of x, rounded down."""\n',
        "entry_point": "half",
        "test": "def check(candidate):\n    assert candidate(7) == 3\n    assert candidate(8) == 4\n",
    },
    "summarization": {"article": "A long story.", "summary": "A story."},
    "translation": {"source": "Guten Tag.", "reference": "Good day.", "languages": "German to English"},
    "qa": {"question": "Who wrote it?", "answers": ["The Brothers Grimm", "Grimm"]},
    "prompts": {"prompt": "Say something."},
    "own": {"id": "math-1", "category": "math", "prompt": "2 + 2?", "answers": ["4", "four"]},
}


def items(name: str, tmp_path: Path, *rows: Any, **more: Any) -> list[Item]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_items(task_of(name), path, **more)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_reads_its_rows(name: str, tmp_path: Path) -> None:
    (item,) = items(name, tmp_path, ROWS[name])
    assert item.name
    assert item.category
    assert item.turns
    assert (item.reference is not None) == bool(TASKS[name].metrics)


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("spec_bench", {"category": "qa", "turns": []}, r"has turns \[\], not a list of texts"),
        ("mt_bench", {"turns": ["a"]}, "has no category"),
        ("gsm8k", {"question": "", "answer": "#### 1"}, "has question '', not a text"),
        ("gsm8k", {"question": "How?", "answer": "#### many"}, "has an answer without a number"),
        ("humaneval", {"task_id": "1"}, "has no prompt"),
        ("summarization", {"summary": "a"}, "has no article or document"),
        ("translation", {"source": "a", "languages": 3}, "has languages 3"),
        ("qa", {"question": "a", "answers": "b"}, "has answers 'b', not a list"),
        ("prompts", ["a"], "is not a JSON object"),
    ],
)
def test_a_malformed_row_is_named_and_left_out_only_if_asked(name: str, wrong: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"line 2 of .*rows.jsonl {words}.*--skip-bad"):
        items(name, tmp_path, ROWS[name], wrong)
    told: list[str] = []
    assert len(items(name, tmp_path, ROWS[name], wrong, bad=told.append)) == 1
    (line,) = told
    assert "line 2" in line


def test_a_line_that_is_no_json_and_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt":\n')
    with pytest.raises(InputError, match=r"line 2 of .* is not JSON"):
        read_items(task_of("prompts"), tmp_path)
    told: list[str] = []
    assert len(read_items(task_of("prompts"), tmp_path, told.append)) == 1
    assert len(told) == 1
    path.write_text("\n")
    with pytest.raises(InputError, match="no usable row for the task prompts"):
        read_items(task_of("prompts"), tmp_path)


def test_the_file_is_found_by_its_name_packed_or_not(tmp_path: Path) -> None:
    task = task_of("humaneval")
    with pytest.raises(InputError, match=r"has no HumanEval.jsonl.gz or HumanEval.jsonl.*task humaneval"):
        find_file(task, tmp_path)
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROWS["humaneval"]).encode()))
    (item,) = read_items(task, tmp_path)
    assert item.name == "HumanEval/0"


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown task 'gsm8': did you mean 'gsm8k'"):
        task_of("gsm8")


@pytest.mark.parametrize(
    ("text", "number"),
    [("It is 1,200.", 1200.0), ("$18.00", 18.0), ("from 3 to -4", -4.0), ("so 5 eggs, not 6.5", 6.5), ("none", None)],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number


def test_sums_are_scored_by_their_last_number(tmp_path: Path) -> None:
    task = task_of("gsm8k")
    (item,) = items("gsm8k", tmp_path, ROWS["gsm8k"])
    assert task.score(item, "2 times 600 is $1,200.00") == {"exact_match": 1.0}
    assert task.score(item, "1200 or 1300") == {"exact_match": 0.0}
    assert task.score(item, "no idea") == {"exact_match": 0.0}
    unknown = Item("2", "gsm8k", ("How?",))
    assert task.total([item, item, unknown], ["1200", "7", "7"]) == {"exact_match": 0.5}
    assert task.total([unknown], ["7"]) == {}


def test_short_answers_are_compared_without_articles_and_case(tmp_path: Path) -> None:
    task = task_of("qa")
    (item,) = items("qa", tmp_path, ROWS["qa"])
    assert task.score(item, "brothers grimm!") == {"exact_match": 1.0, "f1": 1.0}
    assert task.score(item, "It was Grimm") == {"exact_match": 0.0, "f1": 0.5}
    assert task.score(item, "") == {"exact_match": 0.0, "f1": 0.0}


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("    return x // 2\n", 1.0),
        ("    return x / 2\n", 0.0),
        ("Here it is:\n```python\ndef half(x):\n    return math.floor(x / 2)\n```\nIt halves.", 1.0),
        ("```\nprint('nothing')\n```", 0.0),
        ("    raise SystemExit(0)\n", 0.0),
    ],
)
def test_code_passes_if_its_tests_do(answer: str, passes: float, tmp_path: Path) -> None:
    (item,) = items("humaneval", tmp_path, ROWS["humaneval"])
    assert task_of("humaneval").score(item, answer) == {"pass@1": passes}


def test_a_fenced_function_keeps_the_imports_before_it() -> None:
    tests = FunctionTests("import math\n\ndef f(x):\n", "f", "")
    assert code_of("```py\ndef f(x):\n    return 1\n```", tests).startswith("import math")
    assert code_of("    return 1", tests) == "import math\n\ndef f(x):\n    return 1"


def test_summaries_and_translations(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score")
    pytest.importorskip("sacrebleu")
    (summary,) = items("summarization", tmp_path, ROWS["summarization"])
    assert task_of("summarization").score(summary, "A story.")["rougeL"] == 1.0
    assert task_of("summarization").score(summary, "Nothing")["rouge1"] == 0.0
    task = task_of("translation")
    (sentence,) = items("translation", tmp_path, ROWS["translation"])
    assert task.score(sentence, "Good day.")["chrf"] == pytest.approx(1.0)
    assert task.total([sentence, Item("2", "translation", ("x",))], ["Good day.", "x"])["chrf"] == pytest.approx(1.0)
    assert task.total([Item("2", "translation", ("x",))], ["x"]) == {}


def test_the_packages_own_prompts() -> None:
    """Six kinds at least, each with what a user may ask; an answer that says the right thing is one."""
    own = own_items()
    assert len({item.category for item in own}) == 7
    assert len({item.turns for item in own}) == len(own) == 35
    (sum_,) = [item for item in own if item.name == "math-1"]
    assert TASKS["own"].score(sum_, "She makes 84 loaves.") == {"answered": 1.0}
    assert TASKS["own"].score(sum_, "She makes 48 loaves.") == {"answered": 0.0}
