"""Rows of a benchmark that nobody ran: several systems with speeds that are chosen, for tests and for a look at a page.

`python -m tests.bench.made_results FILE` writes them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WORDS = (
    "A mirror turns left and right around because it does neither : it keeps every point in front of the point it is , "
    "and so the hand that is on the left stays on the left , while we think of a person who has turned to face us .\n"
    "For a proof , write a word on glass and read it from behind : <nothing> was turned but the glass ."
)
TEXT = WORDS.split(" ")
CATEGORIES = {"own": ("code", "rewriting", "writing"), "gsm8k": ("gsm8k",), "summarization": ("summarization",)}
METRICS = {"gsm8k": {"accuracy": 0.0}, "summarization": {"rouge1": 0.31, "rougeL": 0.22}}
FLOORS = {"gsm8k": {"accuracy": 0.0}, "summarization": {"rouge1": 0.12, "rougeL": 0.09}}
PARTS = ("draft_layer", "draft_head", "verify", "sampling", "other")


@dataclass(frozen=True)
class Made:
    """A system. `gain`: of tokens/s over the baseline, with what is multiplied on some category; `accepted`: the chance
    that a drafted token is (0: it drafts nothing); `differs`: the share of answers that end otherwise."""

    name: str
    type: str
    gain: float
    options: Row
    accepted: float = 0.0
    differs: float = 0.0
    on: tuple[tuple[str, float], ...] = ()
    memory: int = 400
    tells: bool = True


BASELINE = "slimtier plain"
SYSTEMS = (
    Made(BASELINE, "slimtier", 1.0, {"drafter": "none", "precision": "q8"}),
    Made("slimtier", "slimtier", 1.9, {"drafter": "auto", "precision": "q8"}, 0.72, on=(("writing", 0.6),)),
    Made("slimtier ngram", "slimtier", 1.2, {"drafter": "ngram", "precision": "q8"}, 0.4, on=(("writing", 0.75),)),
    Made(
        "slimtier lenient",
        "slimtier",
        2.1,
        {"drafter": "auto", "precision": "q8", "verifier": "lenient"},
        0.82,
        differs=0.5,
    ),
    Made("transformers plain", "transformers", 0.2, {"method": "plain"}, differs=0.1, memory=1210, tells=False),
    Made("llama.cpp plain", "llama.cpp", 1.35, {"method": "plain"}, differs=0.2, memory=260, tells=False),
)
ABSENT = (
    ("vllm eagle3", "vllm", "skipped", "vllm is not installed; install it: pip install vllm"),
    ("flashspec", "flashspec", "failed", "the worker ended: out of memory while loading"),
)


def made_rows(prompts: int = 12, *, seed: int = 0, noise: float = 0.02, drift: float = 1.0, **run: Any) -> list[Row]:
    """All rows, `prompts` for each category. `noise`: the spread of each time; `drift`: by how much the second answers
    of the baseline are faster; `run` replaces fields of the run row."""
    rng = random.Random(seed)
    rows = list(_head(prompts, run))
    for task, categories in CATEGORIES.items():
        for category in categories:
            for number in range(prompts):
                item = f"{category}-{number}"
                answers = list(_answers(task, category, item, rng, noise, drift))
                rows += [*answers, *_likelihoods(task, item, answers, rng)]
    rows.append({"kind": "failure", "system": "llama.cpp plain", "task": "own", "item": "code-x", "repeat": 0,
                 "error": "Traceback\nRuntimeError: llama_decode returned 1"})  # fmt: skip
    for task, metrics in METRICS.items():
        for system in SYSTEMS:
            worse = 0.05 if system.name == "slimtier lenient" else 0.0
            values = {name: max(0.0, value - worse) for name, value in metrics.items()}
            rows.append(
                {"kind": "score", "system": system.name, "task": task, "metrics": values, "floor": FLOORS[task],
                 "items": prompts}
            )  # fmt: skip
    rows.append({"kind": "exactness", "system": "slimtier", "reference": BASELINE, "compared": 60, "identical": 60,
                 "near_ties": 0, "defects": 0, "lossy": 0})  # fmt: skip
    return [*rows, {"kind": "end", "seconds": 1834.0}]


def _head(prompts: int, run: Row) -> Iterator[Row]:
    yield {
        "kind": "provenance", "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "slimtier": "0.1.0",
        "torch": "2.13.0", "transformers": "5.24.0", "python": "3.11.7", "cpu": "Made-up CPU", "cores": 2,
        "isa": "avx2", "argv": ["slimtier", "bench", "bench.toml", "--output", "results.jsonl"], "seed": 0,
        "date": "2026-11-30T19:00:00+00:00",
    }  # fmt: skip
    config = {
        "max_new_tokens": 48, "temperature": 0.0, "threads": 2, "seed": 0,
        "systems": {system.name: {"type": system.type, "options": system.options} for system in SYSTEMS},
    }  # fmt: skip
    count = prompts * sum(map(len, CATEGORIES.values()))
    tasks = dict.fromkeys(CATEGORIES, 1)
    yield {
        "kind": "run", "schema": 1, "model": "smollm2-135m", "config": config, "tasks": tasks, "baseline": BASELINE,
        "prompts": count, **run,
    }  # fmt: skip
    for system in SYSTEMS:
        versions = {system.type: "0.1.0"}
        yield {
            "kind": "system", "system": system.name, "type": system.type, "options": system.options, "state": "ready",
            "reason": None, "lossless": "verifier" not in system.options, "versions": versions, "settings": {},
            "load_s": 1.5, "idle_cores": 0.0,
        }  # fmt: skip
    for name, type_, state, reason in ABSENT:
        yield {
            "kind": "system", "system": name, "type": type_, "options": {}, "state": state, "reason": reason,
            "versions": {}, "settings": {}, "load_s": None, "idle_cores": None,
        }  # fmt: skip


def _answers(task: str, category: str, item: str, rng: random.Random, noise: float, drift: float) -> Iterator[Row]:
    plain = 46.0 * rng.uniform(0.92, 1.08)
    length = rng.randint(30, 48)
    for system in SYSTEMS:
        gain = system.gain * dict(system.on).get(category, 1.0)
        spread = 1.0 if system.gain == 1.0 else rng.uniform(0.85, 1.15)
        yield _answer(system, task, category, item, plain * gain * spread * rng.gauss(1, noise), length, rng)
    again = _answer(SYSTEMS[0], task, category, item, plain * drift * rng.gauss(1, noise), length, rng)
    yield {**again, "control": True}


def _answer(system: Made, task: str, category: str, item: str, speed: float, length: int, rng: random.Random) -> Row:
    start = sum(map(ord, item)) % 20
    words = [TEXT[(start + number) % len(TEXT)] + " " for number in range(length)]
    same = rng.random() >= system.differs
    if not same:
        words[length // 2 :] = [word.upper() for word in words[length // 2 :]]
    first = 0.08 + 0.002 * system.memory / 10
    row = {
        "kind": "answer", "system": system.name, "control": False, "task": task, "item": item, "category": category,
        "repeat": 0, "num_prompt_tokens": 90, "num_output_tokens": length, "token_ids": [_id(word) for word in words],
        "text": "".join(words), "pieces": words, "prompt": f"Say something on {item} in a few sentences, & <quickly>.",
        "tokens_per_s": speed, "end_to_end_tokens_per_s": length / (first + length / speed),
        "time_to_first_token_s": first, "time_per_output_token_s": 1 / speed,
        "peak_memory_bytes": system.memory * 2**20, "loop_share": 0.0, "same_as_baseline": same,
        "scores": _scores(task, system, rng),
    }  # fmt: skip
    return {**row, **_told(system, words, speed, rng)} if system.tells else row


def _id(word: str) -> int:
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(word))


def _scores(task: str, system: Made, rng: random.Random) -> dict[str, float]:
    worse = 0.05 if system.name == "slimtier lenient" else 0.0
    shift = rng.gauss(0, 0.02) if system.differs else 0.0
    return {name: max(0.0, value - worse + shift) for name, value in METRICS.get(task, {}).items()}


def _told(system: Made, words: list[str], speed: float, rng: random.Random) -> Row:
    """What our own systems tell of their work: rounds of up to five drafted tokens."""
    deciders: list[str] = []
    drafted, rounds, drafts, examined, kept = 0, 0, 0, 0, [0] * 5
    while len(deciders) < len(words):
        room = min(5, len(words) - len(deciders) - 1) if system.accepted else 0
        accepted = 0
        while accepted < room and rng.random() < system.accepted:
            kept[accepted] += 1
            accepted += 1
        deciders += [*["drafter"] * accepted, "slim" if system.differs and rng.random() < 0.3 else "target"]
        rounds, drafts, drafted = rounds + 1, drafts + bool(room), drafted + room
        examined += min(accepted + 1, room)
    seconds = len(words) / speed
    shares = (0.1, 0.07, 0.72, 0.02, 0.09) if system.accepted else (0.0, 0.0, 0.95, 0.01, 0.04)
    stats = {
        "num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": sum(kept),
        "num_accepted_tokens_per_pos": kept if system.accepted else [], "num_examined_tokens": examined,
        "num_target_calls": rounds,
    }  # fmt: skip
    split = {part: share * seconds for part, share in zip(PARTS, shares, strict=True)}
    return {"deciders": deciders, "stats": stats, "time_split_s": split}


def _likelihoods(task: str, item: str, answers: list[Row], rng: random.Random) -> Iterator[Row]:
    """One row for each answer that differs from the others, with the systems that gave it."""
    given: dict[str, list[str]] = {}
    for answer in answers:
        if not answer["control"]:
            given.setdefault(answer["text"], []).append(answer["system"])
    usual = rng.uniform(0.3, 0.9)
    for number, names in enumerate(given.values()):
        value = -usual - number * rng.uniform(0.0, 0.1)
        yield {
            "kind": "likelihood",
            "task": task,
            "item": item,
            "systems": names,
            "log_likelihood": value,
            "tokens": 40,
        }


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


if __name__ == "__main__":
    write_rows(Path(sys.argv[1]), made_rows())
