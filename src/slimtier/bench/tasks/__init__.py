"""The tasks, one short file each."""

from __future__ import annotations

from slimtier.bench.tasks.base import Task
from slimtier.bench.tasks.gsm8k import Gsm8k
from slimtier.bench.tasks.humaneval import HumanEval
from slimtier.bench.tasks.mt_bench import MtBench
from slimtier.bench.tasks.own import Own
from slimtier.bench.tasks.prompts import Prompts
from slimtier.bench.tasks.qa import Qa
from slimtier.bench.tasks.spec_bench import SpecBench
from slimtier.bench.tasks.summarization import Summarization
from slimtier.bench.tasks.translation import Translation
from slimtier.config import refuse_unknown

_ALL: tuple[Task, ...] = (
    Own(), SpecBench(), MtBench(), Gsm8k(), HumanEval(), Summarization(), Translation(), Qa(), Prompts(),
)  # fmt: skip
TASKS = {task.name: task for task in _ALL}


def task_of(name: str) -> Task:
    """The task of that name. Raises ConfigError, naming the nearest."""
    refuse_unknown([name], tuple(TASKS), "task")
    return TASKS[name]
