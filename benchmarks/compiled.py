"""Small C++ programs, compiled when a benchmark needs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, say


class CompiledProgram:
    """The program of `sources` (paths from the repository's root), which prints one JSON value; use it in a `with`
    block. `available` is False, and that is said, when the machine has no compiler or it fails."""

    def __init__(self, sources: Sequence[str], flags: Sequence[str] = ()) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="slimtier-benchmark-")
        self._program = Path(self._directory.name) / "program"
        compiler = shutil.which("c++") or shutil.which("g++")
        self.available = compiler is not None
        if compiler is None:
            say(f"skipped: {sources[0]} needs a C++ compiler (g++ or clang++)")
            return
        command = [compiler, "-std=c++17", "-O3", "-march=native", "-pthread", *flags, f"-I{ROOT / 'cpp'}"]
        command += [*(str(ROOT / source) for source in sources), "-o", str(self._program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.available = False
            say(f"skipped: {sources[0]} does not compile here: {done.stderr.strip()[:500]}")

    def run(self, *arguments: object) -> Any:
        done = subprocess.run([self._program, *map(str, arguments)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def __enter__(self) -> CompiledProgram:
        return self

    def __exit__(self, *error: object) -> None:
        self._directory.cleanup()
