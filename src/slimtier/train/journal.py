"""The record of a run: metrics.jsonl, a line for every few steps, and what a person sees meanwhile."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slimtier.files import write_whole

_SECONDS_A_LINE = 60.0  # where there is no terminal for a bar


class Journal:
    """Appends to metrics.jsonl in `directory`; on a terminal a bar shows the latest numbers, elsewhere stderr gets a
    line a minute."""

    def __init__(self, directory: Path, steps: int, done: int) -> None:
        self.path, self.steps, self.done = directory / "metrics.jsonl", steps, done
        _forget_after(self.path, done)
        self._spoken = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
        if "validation" in line:
            self.say(f"step {line['step']}: {validation_words(line['validation'])}")

    def say(self, words: str) -> None:
        """A line for a person, on stderr."""
        if self._bar is not None:
            self._bar.console.print(words, highlight=False)
        else:
            print(words, file=sys.stderr, flush=True)

    def show(self, step: int, words: str) -> None:
        """What the step just done was like."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, words=words)
        elif time.monotonic() - self._spoken > _SECONDS_A_LINE:
            self._spoken = time.monotonic()
            self.say(f"step {step}/{self.steps}: {words}")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While this lasts a terminal has its bar."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[words]}"))
        with Progress("training", *columns, console=Console(stderr=True)) as bar:
            self._bar, self._task = bar, bar.add_task("training", total=self.steps, completed=self.done, words="")
            yield
        self._bar = None


def validation_words(values: Mapping[str, Any]) -> str:
    """A validation in a line."""
    top1 = " ".join(f"{100 * value:.1f}" for value in values["top1"])
    acceptance = " ".join(f"{100 * value:.1f}" for value in values["acceptance"])
    return f"top-1 {top1} % · acceptance {acceptance} % · acceptance length {values['acceptance_length']:.3f}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; one that was cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _forget_after(path: Path, step: int) -> None:
    """Drop what was noted after `step`: it will be done, and noted, again."""
    kept = [line for line in read_lines(path) if line["step"] <= step]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
