"""What the benchmark scripts share: their options, how rows are written, and the statistics of a table."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LOOP_NGRAM = 8
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


def model_slug(model: str) -> str:
    """A file name for a model's name: org/name -> org--name, /models/x.gguf -> x.gguf."""
    return Path(model).name if os.path.isabs(model) else model.replace("/", "--")


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


def writer(arguments: argparse.Namespace, name: str) -> JsonlWriter:
    """The writer of a script's rows, with this process's provenance."""
    from slimtier.kernels import core
    from slimtier.provenance import Provenance

    provenance = Provenance.collect(cores=arguments.threads, isa=core.isa(), seed=arguments.seed)
    return JsonlWriter(output_path(arguments, name), provenance.to_dict())


def in_turn(items: Sequence[T], turn: int) -> list[T]:
    """All of them, each turn beginning with another one."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def say(line: str) -> None:
    """Progress, on stderr: stdout has the tables."""
    print(line, file=sys.stderr, flush=True)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; None is an empty cell, a float has three significant digits."""
    lines = [list(headers), ["---"] * len(headers), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def median(values: Sequence[float | None]) -> float | None:
    """The median of those that are there; None of none."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def bootstrap_ratio(
    numerators: Sequence[float | None], denominators: Sequence[float | None], seed: int = 0, draws: int = 2000
) -> tuple[float, float, float] | None:
    """The median of the paired ratios numerators[i] / denominators[i], and the bounds of its 95 % percentile bootstrap
    interval over the pairs (Efron 1979). A pair that lacks either is left out; None when no pair is whole."""
    pairs = zip(numerators, denominators, strict=True)
    ratios = np.array([a / b for a, b in pairs if a is not None and b], dtype=np.float64)
    if not len(ratios):
        return None
    chosen = np.random.default_rng(seed).integers(0, len(ratios), (draws, len(ratios)))
    low, high = np.percentile(np.median(ratios[chosen], axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def ratio_cell(ratio: tuple[float, float, float] | None) -> str:
    return "" if ratio is None else f"{ratio[0]:.2f}× [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def loop_share(token_ids: Sequence[int], size: int = LOOP_NGRAM) -> float:
    """The share of output tokens that lie in looped text: those covered by an n-gram of `size` tokens that occurred
    before in the same output. 1 2 3 … 8 said three times over is 16 / 24; a text without repetition is 0."""
    seen: set[tuple[int, ...]] = set()
    looped = [False] * len(token_ids)
    for start in range(len(token_ids) - size + 1):
        ngram = tuple(token_ids[start : start + size])
        if ngram in seen:
            looped[start : start + size] = [True] * size
        seen.add(ngram)
    return sum(looped) / len(looped) if looped else 0.0
