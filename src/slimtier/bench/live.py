"""What a person sees while a benchmark runs: a table that fills, or a line a prompt where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from slimtier.bench.statistics import bootstrap_ratio, median, ratio_text
from slimtier.bench.systems import System


class Live:
    """Use it in a `with` block; everything goes to stderr."""

    def __init__(self, baseline: str) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        self._baseline = baseline
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._head = "loading"
        self._begun = time.monotonic()
        self._done_before: int | None = None
        self._console = Console(stderr=True)
        self._screen = Screen(console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._screen.stop()

    def loading(self, system: System) -> None:
        self._tell(f"loading {system.name}")

    def loaded(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["reason"]:
                self._console.print(f"{row['system']}: {row['state']}: {row['reason']}", markup=False, highlight=False)
        self._begun = time.monotonic()

    def answered(self, rows: Sequence[Mapping[str, Any]], done: int, total: int) -> None:
        for row in rows:
            name = row["system"] + (" (again)" if row["control"] else "")
            self._rows.setdefault(name, []).append(row)
        if self._done_before is None:
            self._done_before = done - 1
        seconds = time.monotonic() - self._begun
        left = seconds / max(1, done - self._done_before) * (total - done)
        self._tell(f"prompt {done} of {total}, about {_clock(left)} left")

    def judging(self, done: int, total: int) -> None:
        self._tell(f"log-likelihood of the answers to prompt {done} of {total}")

    def batch(self, row: Mapping[str, Any], done: int, total: int) -> None:
        speed = row.get("error") or f"{row['tokens_per_s']:.1f} tokens/s"
        self._console.print(f"{row['system']}, batch {row['batch']}: {speed} ({done} of {total})", markup=False)

    def _tell(self, head: str) -> None:
        self._head = head
        if self._console.is_terminal:
            self._screen.update(self._table(), refresh=True)
        else:
            print(head, file=sys.stderr, flush=True)

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(title=self._head, title_justify="left")
        table.add_column("system")
        for header in ("prompts", "tokens/s", f"÷ {self._baseline}", "acceptance length"):
            table.add_column(header, justify="right")
        for name, rows in self._rows.items():
            lengths = [(row.get("stats") or {}).get("mean_acceptance_length") for row in rows]
            speed, length = median([row["tokens_per_s"] for row in rows]), median(lengths)
            table.add_row(name, str(len(rows)), _number(speed, 1), self._ratio(rows), _number(length, 2))
        return table

    def _ratio(self, rows: Sequence[Mapping[str, Any]]) -> str:
        base = {_place(row): row["tokens_per_s"] for row in self._rows.get(self._baseline, ())}
        theirs = [base.get(_place(row)) for row in rows]
        return ratio_text(bootstrap_ratio([row["tokens_per_s"] for row in rows], theirs, draws=400))


def _place(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["task"], row["item"], row["repeat"]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
