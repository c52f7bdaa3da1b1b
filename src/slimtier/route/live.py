"""What a person sees while a route is searched: bars on a terminal, sentences on stderr everywhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class Live:
    """Use it in a `with` block; everything goes to stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=self._console, transient=True)
        self._task: Any = None

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, what: str) -> None:
        """A new bar takes the place of the last one."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=None)

    def move(self, done: int, total: int, words: str | None = None) -> None:
        """The bar's place, and other words before it."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total, description=words)

    def say(self, line: str) -> None:
        self._console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
