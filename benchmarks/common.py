"""What the benchmark scripts share: their options, how rows are written, and how they look after a worker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from slimtier.bench.worker import IDLE_LIMIT, Worker

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def parser(document: str, name: str) -> argparse.ArgumentParser:
    """Options that every script has; `document` is the script's docstring."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a few prompts, 16 tokens: shows that it works")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, help=f"JSONL of the rows (default results/{name}.jsonl; quick: below build)")
    return made


def output_path(arguments: argparse.Namespace, name: str) -> Path:
    if arguments.out is not None:
        return Path(arguments.out)
    return ROOT / ("build/quick" if arguments.quick else "results") / f"{name}.jsonl"


class JsonlWriter:
    """Rows as they come, in a file beside `path` that takes its name when all went well. The first row is the
    provenance; a run that breaks off leaves what it had in `path`.part."""

    def __init__(self, path: Path, provenance: dict[str, Any]) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._part.open("w", encoding="utf-8")
        self.write("provenance", **provenance)

    def write(self, kind: str, **row: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if error is None:
            os.replace(self._part, self.path)
            say(f"rows: {self.path}")
        else:
            say(f"broken off; the rows so far: {self._part}")


def writer(arguments: argparse.Namespace, name: str, path: Path | None = None) -> JsonlWriter:
    """The writer of a script's rows, with this process's provenance; `path`: not the script's usual one."""
    from slimtier.kernels import core
    from slimtier.provenance import Provenance

    provenance = Provenance.collect(cores=arguments.threads, isa=core.isa(), seed=arguments.seed)
    return JsonlWriter(path or output_path(arguments, name), provenance.to_dict())


def say(line: str) -> None:
    """Progress, on stderr: stdout has the tables."""
    print(line, file=sys.stderr, flush=True)


def check_idle(worker: Worker) -> float | None:
    """The idle use, reported on stderr when it would disturb the others."""
    use = worker.idle_use()
    if use is not None and use > IDLE_LIMIT:
        say(f"warning: {worker.family} uses {use:.2f} of a core while it waits; the others' numbers suffer")
    return use
