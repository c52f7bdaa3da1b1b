"""The client's side of a worker process: a system, or a family of them, in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

from benchmarks.common import ROOT, say

_INSTALL = {
    "hf": "pip install torch transformers",
    "economize": "pip install economize",
    "flashspec": "pip install flashspec",
    "llama": "pip install llama-cpp-python   (compiles for several minutes)",
}
_IDLE_LIMIT = 0.05  # CPU seconds a second that a waiting worker may use


class MissingPeer(Exception):
    """A peer that the interpreter cannot import; the message names it and how to install it."""


class Worker:
    """`family` is a module of benchmarks.peers, run by `python` from the repository's root. A worker works only while
    it is asked; use it in a `with` block."""

    def __init__(self, family: str, python: str = sys.executable) -> None:
        self.family = family
        self._python = python
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{family}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

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
            install = _INSTALL.get(self.family, "pip install .")
            raise MissingPeer(f"{self.family} ({self._python}): {reply['missing']}; install it: {install}")
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
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0 if error is None else 0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def check_idle(worker: Worker) -> float | None:
    """The idle use, reported on stderr when it would disturb the others."""
    use = worker.idle_use()
    if use is not None and use > _IDLE_LIMIT:
        say(f"warning: {worker.family} uses {use:.2f} of a core while it waits; the others' numbers suffer")
    return use
