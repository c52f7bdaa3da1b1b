"""A run with systems whose answers are known: turns, rows, what fails, and going on after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slimtier.bench.asked import ask, read_tasks
from slimtier.bench.config import BenchConfig, read_config
from slimtier.bench.contestants import Contestants
from slimtier.bench.journal import Journal
from slimtier.bench.runner import pieces_of, run_bench, run_row
from slimtier.bench.systems import System
from slimtier.bench.worker import MissingPeer
from slimtier.errors import InputError, SlimtierError
from slimtier.models.resolve import ModelFiles
from tests.byte_tokenizer import ByteTokenizer

SYSTEMS = [{"name": "plain", "drafter": "none"}, {"name": "fast"}, {"type": "llama.cpp"}]


class FakeWorker:
    """Answers with the bytes of a text, as fast as it is told; remembers who asked it."""

    asked: ClassVar[list[tuple[str, str]]] = []
    broken: ClassVar[dict[str, Exception]] = {}

    def __init__(self, system: System) -> None:
        self.system = system

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "log_likelihood":
            return {"log_likelihood": -0.5 * len(arguments["answer"])}
        name = arguments.get("drafter") or self.system.type
        text = bytes(arguments["token_ids"]).decode(errors="replace")
        FakeWorker.asked.append((name, text))
        if name in self.broken and "sum" in text:
            raise self.broken[name]
        answer = list(b"it is 84" if name != "llama.cpp" else b"no idea")
        speed = {"none": 10.0, "auto": 20.0}.get(name, 5.0)
        return {
            "token_ids": answer, "tokens_per_s": speed, "end_to_end_tokens_per_s": speed / 2,
            "time_to_first_token_s": 0.1, "peak_memory_bytes": 1000, "deciders": ["target"] * len(answer),
            "stats": {"num_drafts": 1, "mean_acceptance_length": 2.0},
        }  # fmt: skip

    def idle_use(self) -> float:
        return 0.0


class Quiet:
    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.prompts = 0

    def loading(self, system: System) -> None: ...
    def loaded(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.told = list(rows)

    def answered(self, rows: Sequence[Mapping[str, Any]], done: int, total: int) -> None:
        self.prompts += 1

    def judging(self, done: int, total: int) -> None: ...
    def batch(self, row: Mapping[str, Any], done: int, total: int) -> None: ...


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWorker.asked, FakeWorker.broken = [], {}

    def start(self: Contestants, system: System, key: str) -> FakeWorker:
        if isinstance(FakeWorker.broken.get("start " + system.type), Exception):
            raise FakeWorker.broken["start " + system.type]
        self._settings[key] = {"versions": {}, "settings": {}, "load_s": 0.0}
        return FakeWorker(system)

    monkeypatch.setattr(Contestants, "_start", start)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three sums and two other prompts."""
    file = tmp_path / "own.jsonl"
    rows = [{"id": f"s{n}", "category": "math", "prompt": f"sum {n}?", "answers": ["84"]} for n in range(3)]
    rows += [{"id": f"c{n}", "category": "chat", "prompt": f"say {n}"} for n in range(2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def config(data: Path) -> BenchConfig:
    return read_config(
        None, {"systems": SYSTEMS, "tasks": [f"own={data}"], "items": 2, "max_new_tokens": 9, "threads": 1}
    )


def run(config: BenchConfig, out: Path, watcher: Any = None) -> list[dict[str, Any]]:
    tokenizer = ByteTokenizer()
    tasks = read_tasks(config.settings)
    asked, _ = ask(tasks, config.settings, tokenizer)
    with Journal(out, run_row(config, {"own": 1}, len(asked)), {"seed": 0}) as journal:
        run_bench(config, ModelFiles("stub", Path("stub"), "gguf"), tokenizer, asked, journal, watcher or Quiet())
    return rows_of(out)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def of(rows: Sequence[Mapping[str, Any]], kind: str) -> list[Any]:
    return [row for row in rows if row["kind"] == kind]


def test_all_answer_in_turn_and_the_baseline_twice(config: BenchConfig, tmp_path: Path) -> None:
    rows = run(config, tmp_path / "out.jsonl")
    answers = of(rows, "answer")
    assert len(answers) == 4 * 4
    assert sum(row["control"] for row in answers) == 4
    asked = FakeWorker.asked[3:]  # after the warm-up
    firsts = [asked[at][0] for at in range(0, 16, 4)]
    assert firsts == ["none", "auto", "llama.cpp", "none"]  # the control is the last in turn
    assert [len({text for _, text in asked[at : at + 4]}) for at in range(0, 16, 4)] == [1, 1, 1, 1]
    by_name = {row["system"]: row for row in answers if row["item"].startswith("s") and not row["control"]}
    assert by_name["fast"]["same_as_baseline"] is True
    assert by_name["llama.cpp"]["same_as_baseline"] is False
    assert by_name["fast"]["scores"] == {"answered": 1.0}
    assert by_name["fast"]["time_per_output_token_s"] == 1 / 20
    assert {row["system"]: row["metrics"]["answered"] for row in of(rows, "score")} == {
        "plain": 1.0, "fast": 1.0, "llama.cpp": 0.0,
    }  # fmt: skip
    assert [row["kind"] for row in rows][:2] == ["provenance", "run"]
    assert rows[-1]["kind"] == "end"


def test_a_sample_is_kept_token_by_token(config: BenchConfig, tmp_path: Path) -> None:
    answers = of(run(config, tmp_path / "out.jsonl"), "answer")
    shown = [row for row in answers if "pieces" in row]
    assert {row["system"] for row in shown} == {"plain", "fast", "llama.cpp"}
    assert len({row["item"] for row in shown}) == 1
    assert all("".join(row["pieces"]) == row["text"] and len(row["deciders"]) == len(row["pieces"]) for row in shown)
    assert not any("deciders" in row for row in answers if "pieces" not in row)


def test_an_answer_is_judged_once_for_all_that_gave_it(config: BenchConfig, tmp_path: Path) -> None:
    likelihoods = of(run(config, tmp_path / "out.jsonl"), "likelihood")
    assert len(likelihoods) == 2 * 4
    assert sorted(map(tuple, {tuple(sorted(row["systems"])) for row in likelihoods})) == [
        ("fast", "plain"),
        ("llama.cpp",),
    ]
    assert {row["log_likelihood"] for row in likelihoods} == {-0.5}


def test_what_is_missing_is_skipped_and_what_fails_is_shown(config: BenchConfig, tmp_path: Path) -> None:
    FakeWorker.broken = {
        "start llama.cpp": MissingPeer("llama: none here; install it: pip"),
        "auto": RuntimeError("bang\nmore"),
    }
    watcher = Quiet()
    rows = run(config, tmp_path / "out.jsonl", watcher)
    states = {row["system"]: (row["state"], row["reason"]) for row in of(rows, "system")}
    assert states == {
        "plain": ("ready", None),
        "fast": ("ready", None),
        "llama.cpp": ("skipped", "llama: none here; install it: pip"),
    }
    failures = of(rows, "failure")
    assert {(row["system"], row["error"]) for row in failures} == {("fast", "bang")}
    assert len(failures) == 2  # the two sums
    assert len(watcher.told) == 3


def test_nobody_to_compare_is_an_error(config: BenchConfig, tmp_path: Path) -> None:
    FakeWorker.broken = {f"start {kind}": MissingPeer(f"no {kind}") for kind in ("slimtier", "llama.cpp")}
    with pytest.raises(SlimtierError, match="no system can take part: no slimtier"):
        run(config, tmp_path / "out.jsonl")


@pytest.mark.parametrize("cut", [lambda text: text[: len(text) // 2], lambda text: text + '{"kind": "answ'])
def test_a_run_that_was_stopped_goes_on(config: BenchConfig, tmp_path: Path, cut: Callable[[str], str]) -> None:
    whole = run(config, tmp_path / "whole.jsonl")
    lines = [line for line in (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True) if '"end"' not in line]
    out = tmp_path / "out.jsonl"
    out.write_text(cut("".join(lines)))
    FakeWorker.asked = []
    rows = run(config, out)

    def answers(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        return sorted(
            (row["system"], row["control"], row["item"], tuple(row["token_ids"])) for row in of(rows, "answer")
        )

    assert answers(rows) == answers(whole)
    assert len(FakeWorker.asked) < 3 + 16
    assert len(of(rows, "provenance")) == 2
    assert len(of(rows, "run")) == 1


def test_the_file_of_another_run_is_left_alone(config: BenchConfig, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(config, out)
    before = out.read_bytes()
    other = read_config(None, {"systems": SYSTEMS[:2], "tasks": [f"own={data}"]})
    with pytest.raises(InputError, match="results of other settings"):
        run(other, out)
    assert out.read_bytes() == before
    strange = tmp_path / "strange.jsonl"
    strange.write_text("hello\n")
    with pytest.raises(InputError, match=r"line 1 of .*strange"):
        run(config, strange)
    assert strange.read_text() == "hello\n"


def test_prompts_are_drawn_by_seed_and_long_ones_left_out(config: BenchConfig, data: Path) -> None:
    settings = config.settings
    tasks = read_tasks(settings)
    asked, too_long = ask(tasks, settings, ByteTokenizer())
    assert [one.item.category for one in asked] == ["math", "chat", "math", "chat"]
    assert too_long == 0
    assert ask(tasks, settings, ByteTokenizer())[0] == asked
    with pytest.raises(InputError, match="raise max_prompt_tokens"):
        ask(tasks, read_config(None, {"tasks": [f"own={data}"], "max_prompt_tokens": 2}).settings, ByteTokenizer())
    with data.open("a") as file:
        file.write(json.dumps({"id": "s0", "category": "x", "prompt": "again"}) + "\n")
    with pytest.raises(InputError, match="two prompts are called 's0'"):
        read_tasks(settings)


def test_a_task_without_its_file_and_an_unknown_category(config: BenchConfig) -> None:
    with pytest.raises(InputError, match="the task gsm8k needs its data"):
        read_tasks(read_config(None, {"tasks": ["gsm8k"]}).settings)
    with pytest.raises(SlimtierError, match="unknown category 'maths': did you mean 'math'"):
        read_tasks(read_config(None, {"categories": ["maths"]}).settings)


def test_pieces_are_the_text_token_by_token() -> None:
    tokens = list("grün ✓".encode())
    pieces = pieces_of(ByteTokenizer(), tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == "grün ✓"
