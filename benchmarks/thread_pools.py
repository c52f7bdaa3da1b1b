"""What threads cost: slimtier's pool, libgomp and torch's own OpenMP, on a quiet machine and beside a busy process.

    python -m benchmarks.thread_pools

A small program (thread_pools.cpp, compiled with -fopenmp for this) runs regions of 1 and of 200 stages, 16 items each,
with nothing to do and with 2 µs an item; torch adds vectors just above the size from which it uses its threads, less
what one thread needs for them. Busy: a process that spins on core 0. Medians, and the 95th percentile: what a step
meets when the system takes a thread away.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.common import parser, say, writer
from benchmarks.compiled import CompiledProgram
from slimtier.bench.statistics import markdown_table

NAME = "thread_pools"
ROUNDS, QUICK_ROUNDS = 200, 20
TORCH_SIZE = 1 << 16  # two of the chunks of 32768 elements below which torch keeps to one thread


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__ or "", NAME).parse_args(argv)
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    situations = ["quiet", "busy"] if hasattr(os, "sched_setaffinity") else ["quiet"]
    found = []
    with CompiledProgram(["benchmarks/thread_pools.cpp", "cpp/pool.cpp"], ["-fopenmp"]) as program:
        for situation in situations:
            found += [{"situation": situation, **row} for row in _compiled(program, situation, rounds, arguments)]
            found += [{"situation": situation, **row} for row in _torch(situation, rounds, arguments)]
            say(f"{situation} done")
    rows = []
    with writer(arguments, NAME) as out:
        for row in found:
            times = np.array(row.pop("microseconds"))
            row |= {"median_us": float(np.median(times)), "p95_us": float(np.percentile(times, 95))}
            out.write("pool", rounds=rounds, **row)
            ideal = row["stages"] * 8 * row["item_us"]  # each thread's share of the items
            each = (row["median_us"] - ideal) / row["stages"]
            rows.append([*row.values(), each])
    headers = ["machine", "threads of", "stages", "µs an item", "median, µs", "95 %, µs", "cost a stage, µs"]
    print(markdown_table(headers, rows))


def _compiled(program: CompiledProgram, situation: str, rounds: int, arguments: argparse.Namespace) -> list[Any]:
    if not program.available:
        return []
    return list(program.run(arguments.threads, rounds, 0 if situation == "busy" else -1))


def _torch(situation: str, rounds: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The time of an addition on all threads less half of that on one (its ideal on two)."""
    import torch

    left, right, out = (torch.ones(TORCH_SIZE) for _ in range(3))

    def times(threads: int) -> np.ndarray[Any, Any]:
        torch.set_num_threads(threads)
        seconds = []
        for _ in range(rounds + 3):
            started = time.perf_counter()
            torch.add(left, right, out=out)
            seconds.append(time.perf_counter() - started)
        return 1e6 * np.array(seconds[3:])

    with _busy_core(situation == "busy"):
        alone, shared = times(1), times(arguments.threads)
    torch.set_num_threads(1)
    cost = shared - float(np.median(alone)) / arguments.threads
    yield {"pool": "torch's OpenMP", "stages": 1, "item_us": 0.0, "microseconds": cost.tolist()}


@contextmanager
def _busy_core(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    time.sleep(0.5)  # it has an interpreter to start
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin() -> None:
    os.sched_setaffinity(0, {0})
    while True:
        pass


if __name__ == "__main__":
    main()
