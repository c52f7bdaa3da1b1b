"""A worker's side of the benchmarks' line protocol: one JSON request a line on stdin, one JSON reply a line on stdout.

Runs under any Python 3.11, without slimtier. Requests are {"op": NAME, ...arguments}; replies are {"ok": ...},
{"missing": WHAT} when an import failed, or {"error": ...}. What libraries print goes to stderr.
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
            reply = {"ok": operations[request.pop("op")](**request)}
        except ImportError as error:
            reply = {"missing": str(error)}
        except Exception as error:  # whatever a library raises is the client's to report
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


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

    def report(self, **more: Any) -> dict[str, Any]:
        """tokens_per_s: tokens after the first block / seconds after it (None if there are none);
        end_to_end_tokens_per_s: all tokens / all seconds."""
        later, decoding, total = (
            len(self.token_ids) - self._first_block,
            self._last - self._first,
            self._last - self.started,
        )
        return {
            "token_ids": self.token_ids,
            "tokens_per_s": later / decoding if later and decoding > 0 else None,
            "end_to_end_tokens_per_s": len(self.token_ids) / total if total > 0 else None,
            "time_to_first_token_s": self._first - self.started,
            **more,
        }
