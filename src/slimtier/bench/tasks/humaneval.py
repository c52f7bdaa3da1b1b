"""HumanEval (Chen et al. 2021): functions to complete; an answer passes if the task's own tests do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slimtier.bench.sandbox import run_python
from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of

_ASK = "Complete the following Python function.\n\n"
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """The function's beginning, its name, and the code that checks it."""

    prompt: str
    entry_point: str
    check: str


class HumanEval(MeanOfItems):
    """Rows {"task_id", "prompt", "entry_point", "test"}; the code runs in a process of its own, see `sandbox`."""

    name = "humaneval"
    version = 1
    files = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
    metrics = ("pass@1",)

    def item(self, row: Any, number: int) -> Item:
        prompt = text_of(row, "prompt")
        known = "test" in row and "entry_point" in row
        reference = FunctionTests(prompt, text_of(row, "entry_point"), text_of(row, "test")) if known else None
        return Item(name_of(row, number), self.name, (_ASK + prompt,), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        tests: FunctionTests = item.reference
        program = f"{code_of(answer, tests)}\n\n{tests.check}\n\ncheck({tests.entry_point})\n"
        return {"pass@1": float(run_python(program).passed)}


def code_of(answer: str, tests: FunctionTests) -> str:
    """The program in an answer: the first fenced block that defines the function, with what the prompt imports and
    defines before it; else the answer as the prompt goes on."""
    for block in _FENCE.findall(answer):
        if re.search(rf"^def {re.escape(tests.entry_point)}\b", block, re.MULTILINE):
            return f"{tests.prompt.rpartition(f'def {tests.entry_point}')[0]}\n{block}"
    return tests.prompt + answer
