"""The prompts of a run: drawn from the tasks' files, category by category, and encoded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slimtier.bench.config import OWN_TASK, Settings, split_task
from slimtier.bench.tasks import task_of
from slimtier.bench.tasks.base import Item, Task, find_file, read_items
from slimtier.bench.tasks.own import OWN_FILE
from slimtier.config import refuse_unknown
from slimtier.errors import InputError

HUB = "hf://"  # hf://owner/dataset/path/of/file.jsonl


class Categorised(Protocol):
    @property
    def category(self) -> str: ...


Drawn = TypeVar("Drawn", bound=Categorised)


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt of a task, as every system is given it."""

    task: str
    item: Item
    token_ids: tuple[int, ...]


def read_tasks(settings: Settings, bad: Callable[[str], None] | None = None) -> dict[str, list[Item]]:
    """The items of each task that is named, all of them; `bad` is told of rows that are left out.

    Raises InputError for a file that is missing, a row that cannot be used (without `bad`), an unknown category.
    """
    tasks = {
        name: _named(read_items(task_of(name), _file(name, path, settings), bad)) for name, path in _split(settings)
    }
    known = dict.fromkeys(item.category for items in tasks.values() for item in items)
    refuse_unknown(settings.categories, tuple(known), "category")
    return tasks


def ask(tasks: dict[str, list[Item]], settings: Settings, tokenizer: Any) -> tuple[list[Asked], int]:
    """The prompts of a run, the categories taking turns, and how many of those drawn were too long."""
    drawn = [(task, item) for task, items in tasks.items() for item in sample(task, items, settings)]
    encoded = [Asked(task, item, tuple(encode(tokenizer, item.turns[0]))) for task, item in drawn]
    short = [asked for asked in encoded if 0 < len(asked.token_ids) <= settings.max_prompt_tokens]
    if not short:
        raise InputError(
            f"none of {len(encoded)} prompts has at most {settings.max_prompt_tokens} tokens: raise max_prompt_tokens"
        )
    return short, len(encoded) - len(short)


def sample(task: str, items: Sequence[Item], settings: Settings) -> list[Item]:
    """At most `settings.items` (0: all) of each category, drawn by the seed, the categories taking turns."""
    known = dict.fromkeys(item.category for item in items)
    chosen = [category for category in known if not settings.categories or category in settings.categories]
    return draw(items, settings.items or len(items), f"{settings.seed} {task}", chosen)


def draw(items: Sequence[Drawn], count: int, seed: str, categories: Iterable[str]) -> list[Drawn]:
    """At most `count` of each of the categories, drawn by the seed, the categories taking turns."""
    columns = []
    for category in categories:
        mine = [item for item in items if item.category == category]
        columns.append(random.Random(f"{seed} {category}").sample(mine, min(count, len(mine))))
    longest = max(map(len, columns), default=0)
    return [column[i] for i in range(longest) for column in columns if i < len(column)]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of what a user says, through the chat template if the model has one."""
    if tokenizer.has_chat_template:
        return list(tokenizer.encode_chat([{"role": "user", "content": text}]))
    return list(tokenizer.encode(text))


def own_items() -> list[Item]:
    """The prompts that come with the package."""
    return read_items(task_of(OWN_TASK), OWN_FILE)


def _split(settings: Settings) -> Iterator[tuple[str, str]]:
    for text in settings.tasks:
        yield split_task(text)


def _file(name: str, given: str, settings: Settings) -> Path:
    """Where the task's rows are."""
    if given.startswith(HUB):
        return _from_hub(given)
    if given:
        return Path(given).expanduser()
    if name == OWN_TASK:
        return OWN_FILE
    if not settings.data:
        task: Task = task_of(name)
        raise InputError(
            f"the task {name} needs its data: --data DIRECTORY with {' or '.join(task.files)}, or --task {name}=FILE"
        )
    return find_file(task_of(name), Path(settings.data).expanduser())


def _from_hub(address: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    parts = address.removeprefix(HUB).split("/", 2)
    if len(parts) < 3:
        raise InputError(f"{address} names no file of a dataset: write {HUB}owner/dataset/file.jsonl")
    try:
        return Path(hf_hub_download(f"{parts[0]}/{parts[1]}", parts[2], repo_type="dataset"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(f"cannot fetch {address}: {str(error).splitlines()[0]}; give a local file") from error


def _named(items: Sequence[Item]) -> list[Item]:
    """The items, which must have names of their own."""
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise InputError(f"two prompts are called {item.name!r}: give each row an id of its own")
        seen.add(item.name)
    return list(items)
