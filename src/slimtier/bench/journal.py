"""The results file while a run writes it: rows are appended prompt by prompt, and a run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from slimtier.errors import InputError
from slimtier.files import replacing, telling

DERIVED = ("exactness", "draws", "score", "schedule")
Key = tuple[str, bool, str, str, int]  # system, control, task, item, repeat


def key_of(row: Mapping[str, Any]) -> Key:
    return row["system"], bool(row.get("control")), row["task"], row["item"], row["repeat"]


class Journal:
    """Use it in a `with` block. `answers`: those that a run before has given; `complete`: nothing is left to do."""

    def __init__(self, path: Path, run: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Raises InputError when the file is that of another run."""
        self.path = path
        self.answers: dict[Key, dict[str, Any]] = {}
        self.batches: dict[tuple[str, int, int], dict[str, Any]] = {}
        self.likelihoods: set[tuple[str, str, tuple[str, ...]]] = set()
        self.complete = False
        self.resumed = path.is_file() and path.stat().st_size > 0
        with telling(path):
            if self.resumed:
                self._read(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        if not self.complete:
            self.write("provenance", **provenance)
        if not self.resumed:
            self.write("run", **run)

    def write(self, kind: str, **row: Any) -> None:
        """Add a row. Raises InputError when the disk does not take it."""
        with telling(self.path):
            self._file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False) + "\n")
            self._file.flush()

    def _read(self, run: Mapping[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        found = None
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                kind = row["kind"]
            except (ValueError, TypeError, KeyError):
                raise InputError(
                    f"line {number} of {self.path} is no result: name another file, or remove this one"
                ) from None
            found = row if kind == "run" else found
            if kind == "answer":
                self.answers[key_of(row)] = row
            elif kind == "batch":
                self.batches[row["system"], row["batch"], row["repeat"]] = row
            elif kind == "likelihood":
                self.likelihoods.add((row["task"], row["item"], tuple(row["systems"])))
            self.complete = kind == "end"
        if found is None and whole.count(b"\n") > 1:
            raise InputError(f"{self.path} is not a benchmark's file: name another one for --output")
        if found is not None and json.dumps({**run, "kind": "run"}, sort_keys=True) != json.dumps(
            found, sort_keys=True
        ):
            raise InputError(f"{self.path} has the results of other settings: name another file, or remove this one")
        if found is None:
            whole, self.resumed = b"", False  # it ended before it had begun
        if not self.complete:  # what follows from the answers is worked out anew
            lines = whole.splitlines(keepends=True)
            whole = b"".join(line for line in lines if json.loads(line)["kind"] not in DERIVED)
        if whole != content:
            with replacing(self.path) as beside:
                beside.write_bytes(whole)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
