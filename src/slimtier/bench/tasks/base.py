"""What a task is: prompts from a JSON Lines file, and how answers to them are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slimtier.errors import InputError
from slimtier.jsonl import numbered_rows


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt. `turns`: what the user says, one after the other; `reference`: what an answer is scored against, in
    the task's own form (None: it cannot be)."""

    name: str
    category: str
    turns: tuple[str, ...]
    reference: Any = None


class Task(Protocol):
    """Prompts and their scores. `version` rises when either changes; `files` are the names that its data go by;
    `metrics` what `score` gives, each 0 to 1 and better when higher, for each item that has a reference."""

    name: str
    version: int

    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...

    def item(self, row: Any, number: int) -> Item:
        """The item of row `number` of a file. Raises ValueError, saying what is wrong with the row."""

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        """The metrics of one answer to the item's first turn."""

    def total(self, items: Sequence[Item], answers: Sequence[str]) -> Mapping[str, float]:
        """The metrics of a whole run."""


class MeanOfItems:
    """Of a task whose metrics are means of the items'."""

    metrics: tuple[str, ...] = ()

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        """Nothing, unless a task says otherwise."""
        return {}

    def total(self, items: Sequence[Item], answers: Sequence[str]) -> Mapping[str, float]:
        """The means over the items that have a reference."""
        pairs = zip(items, answers, strict=True)
        scores = [self.score(item, answer) for item, answer in pairs if item.reference is not None]
        if not scores:
            return {}
        return {metric: sum(score[metric] for score in scores) / len(scores) for metric in self.metrics}


def find_file(task: Task, data: Path) -> Path:
    """The task's file: `data` itself, or in that directory. Raises InputError when it is not there."""
    if data.is_file():
        return data
    if not data.is_dir():
        raise InputError(f"there is no {data}: name the file of the task {task.name}, or its directory")
    for name in task.files:
        if (data / name).is_file():
            return data / name
    raise InputError(f"{data} has no {' or '.join(task.files)}, which the task {task.name} reads: name its directory")


def read_items(task: Task, data: Path, bad: Callable[[str], None] | None = None) -> list[Item]:
    """The items of a task's file. A row that cannot be used is an InputError with file and line, or, if there is a
    `bad`, told to that and left out."""
    path = find_file(task, data)
    items: list[Item] = []
    for number, row in numbered_rows(path, bad):
        try:
            if not isinstance(row, dict):
                raise ValueError("is not a JSON object")
            items.append(task.item(row, number))
        except ValueError as error:
            words = f"line {number} of {path} {error}"
            if bad is None:
                raise InputError(f"{words}: mend it, or pass --skip-bad") from None
            bad(words)
    if not items:
        raise InputError(f"{path} has no usable row for the task {task.name}")
    return items


def text_of(row: Mapping[str, Any], *keys: str) -> str:
    """The row's text under the first of `keys` that it has. Raises ValueError when there is none."""
    for key in keys:
        if key in row:
            value = row[key]
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"has {key} {value!r}, not a text")
            return value
    raise ValueError(f"has no {' or '.join(keys)}")


def texts_of(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The row's list of texts under `key`. Raises ValueError when it is none."""
    value = row.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(f"has {key} {value!r}, not a list of texts")
    return tuple(value)


def name_of(row: Mapping[str, Any], number: int) -> str:
    """The row's own id, else its number."""
    for key in ("question_id", "task_id", "id"):
        if key in row:
            return str(row[key])
    return str(number)
