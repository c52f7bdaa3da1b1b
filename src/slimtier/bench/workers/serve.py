"""A worker's side of the benchmarks' line protocol: one JSON request a line on stdin, one JSON reply a line on stdout.

Runs under any Python 3.11, without slimtier. Requests are {"op": NAME, ...arguments}; replies are {"ok": ...},
{"missing": WHAT} when an import failed, or {"error": ...}. What libraries print goes to stderr. To what an operation
tells is added the most memory that the process had resident meanwhile, where the system says.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(operations: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests with `operations` until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            forget_peak()
            told = operations[request.pop("op")](**request)
            if isinstance(told, dict):
                told.setdefault("peak_memory_bytes", peak_bytes())
            reply = {"ok": told}
        except ImportError as error:
            reply = {"missing": str(error)}
        except Exception as error:  # whatever a library raises is the client's to report
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


def use_cores(count: int) -> None:
    """Keep to the first `count` of the cores that the process may use: the same ones for every system."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def forget_peak(process: int | str = "self") -> None:
    """Begin anew to look for the most memory that a process has resident."""
    try:
        with open(f"/proc/{process}/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:  # no Linux: the peak is then that of the process's whole life, or unknown
        pass


def peak_bytes(process: int | str = "self") -> int | None:
    """The most since then; None where the system does not say."""
    try:
        with open(f"/proc/{process}/status", encoding="utf-8") as lines:
            found = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    except OSError:
        return None
    return None if found is None else int(found) * 1024


def timed(write: Callable[[int], list[int]], most: int) -> dict[str, Any]:
    """What `Clock.report` tells, of a system that tells no block as it comes: the answer is written twice, its first
    token alone and the whole. write(n): at most n tokens."""
    seconds, written = [], []
    for count in (1, most):
        started = time.perf_counter()
        written = write(count)
        seconds.append(time.perf_counter() - started)
    later, decoding = len(written) - 1, seconds[1] - seconds[0]
    return {
        "token_ids": written,
        "tokens_per_s": later / decoding if later > 0 and decoding > 0 else None,
        "end_to_end_tokens_per_s": len(written) / seconds[1],
        "time_to_first_token_s": seconds[0],
    }


def calls(tokens: int, target_calls: int) -> dict[str, Any]:
    """The statistics of a system that tells only how often its target ran."""
    return {
        "num_output_tokens": tokens,
        "num_target_calls": target_calls,
        "target_calls_per_token": target_calls / tokens if tokens else None,
    }


class Clock:
    """The times of one answer, alike for every system: told of each block of tokens when the caller gets it."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.token_ids: list[int] = []
        self._first = self._last = self.started
        self._first_block = 0

    def block(self, token_ids: list[int]) -> None:
        self._last = time.perf_counter()
        if not self.token_ids:
            self._first, self._first_block = self._last, len(token_ids)
        self.token_ids += token_ids

    @property
    def decoding_s(self) -> float:
        """Seconds after the first block."""
        return self._last - self._first

    def report(self, **more: Any) -> dict[str, Any]:
        """tokens_per_s: tokens after the first block / seconds after it (None if there are none);
        end_to_end_tokens_per_s: all tokens / all seconds."""
        later, decoding, total = (
            len(self.token_ids) - self._first_block,
            self.decoding_s,
            self._last - self.started,
        )
        return {
            "token_ids": self.token_ids,
            "tokens_per_s": later / decoding if later and decoding > 0 else None,
            "end_to_end_tokens_per_s": len(self.token_ids) / total if total > 0 else None,
            "time_to_first_token_s": self._first - self.started,
            **more,
        }
