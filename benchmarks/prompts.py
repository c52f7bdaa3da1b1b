"""The prompts of the benchmarks: those of a file in Spec-Bench's form, or sixty of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import say
from slimtier.bench.asked import draw, encode

_TOPICS = (
    ("tides", "The tides rise and fall twice a day because the moon pulls on the oceans, and on the near side most."),
    ("bread", "Bread rises because yeast eats sugar and gives off a gas, which the dough's gluten holds as bubbles."),
    ("bicycles", "A bicycle stays upright while it rolls because its front wheel steers under the fall of its rider."),
    ("libraries", "The town's library lends books for four weeks, and music and films for two; children pay nothing."),
    ("volcanoes", "A volcano erupts when molten rock, lighter than the rock around it, rises and its gas comes out."),
    ("bees", "Bees tell each other where flowers are by a dance, whose angle to the vertical is that to the sun."),
    ("clocks", "A pendulum clock loses time in summer, for its rod grows longer in the warmth and swings more slowly."),
    (
        "bridges",
        "An arch carries its load as pressure, which stone bears well, and hands it on to the banks beside it.",
    ),
    ("rivers", "A river bends more and more, since water runs faster on the outer bank and carries its earth away."),
    ("mirrors", "A mirror swaps front and back, not left and right: we say so because we imagine turning to face it."),
)
_TASKS = (
    "Explain {topic} to a child of ten.",
    "Write a short story about {topic}.",
    "List five facts about {topic}.",
    "Summarize in one sentence: {text}",
    "Repeat the following text word for word, then ask a question about it.\n\n{text}",
    "Write a Python function with a docstring that has something to do with {topic}.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what the user says; `name` says which prompt it was in its file."""

    name: str
    category: str
    text: str


def own_prompts() -> list[Prompt]:
    """Sixty prompts: six tasks on ten topics."""
    return [
        Prompt(f"{topic}-{number}", f"task {number}", task.format(topic=topic, text=text))
        for topic, text in _TOPICS
        for number, task in enumerate(_TASKS)
    ]


def read_prompts(path: Path) -> list[Prompt]:
    """The first turns of a JSONL file of {"question_id", "category", "turns"}."""
    prompts = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            prompts.append(Prompt(str(row["question_id"]), row["category"], row["turns"][0]))
    return prompts


def evaluation_prompts(directory: Path) -> list[Prompt]:
    """Spec-Bench in its six categories (MT-Bench's eight are one of them), GSM8K and HumanEval, from a directory of
    spec_bench.jsonl, gsm8k_test_400.jsonl and HumanEval.jsonl.gz. A prompt of HumanEval is a function to complete."""
    from slimtier.bench.tasks import task_of
    from slimtier.bench.tasks.base import read_items

    spec, gsm8k, human_eval = (read_items(task_of(name), directory) for name in ("spec_bench", "gsm8k", "humaneval"))
    sums = [Prompt(f"gsm8k-{i}", item.category, item.turns[0]) for i, item in enumerate(gsm8k)]
    spec_prompts, functions = (
        [Prompt(item.name, item.category, item.turns[0]) for item in items] for items in (spec, human_eval)
    )
    return [*spec_prompts, *sums, *functions]


def sample(prompts: Sequence[Prompt], per_category: int, seed: int, categories: Sequence[str] = ()) -> list[Prompt]:
    """At most `per_category` prompts of each category (of those named, if any are), the categories taking turns."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    for name in categories:
        if name not in known:
            raise SystemExit(f"no category {name!r} in the prompts: choose of {', '.join(known)}")
    return draw(prompts, per_category, str(seed), categories or known)


def fitting(prompts: Sequence[Prompt], tokenizer: Any, most: int) -> list[tuple[Prompt, list[int]]]:
    """The prompts of at most `most` tokens, with their ids; says how many were too long."""
    encoded = [(prompt, encode(tokenizer, prompt.text)) for prompt in prompts]
    short = [pair for pair in encoded if len(pair[1]) <= most]
    if len(short) < len(encoded):
        say(f"{len(encoded) - len(short)} prompts of more than {most} tokens are left out")
    return short
