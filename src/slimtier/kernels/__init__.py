"""CPU kernels in C++ (`core`) and their naive twins in plain torch (`naive`).

`core.Matrix` packs a weight matrix for the instruction set at hand, `core.Decoder` runs all layers of a forward pass
in one call on a `core.Pool` of threads. Each output row is reduced in one order whatever the number of tokens, the
batch, the chunking or the thread count, so the same token gets the same bits (docs/structure.md says how).
"""

from __future__ import annotations

import functools
import os

from slimtier.errors import MissingDependencyError

try:
    from slimtier.kernels import _core as core
except ImportError as error:
    raise MissingDependencyError(f"slimtier's compiled core is missing ({error}); run pip install . again") from error

__all__ = ["available_threads", "core", "pool"]


def available_threads() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def pool(threads: int) -> core.Pool:
    """The process's pool of `threads` threads: models share one, since they never run at once."""
    return core.Pool(threads)
