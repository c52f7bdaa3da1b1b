"""Floating-point numbers as model files store them, made float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# type name -> bytes [n · size] to values [n], in memory of their own (the bytes may be a read-only map of a file)
READ_FLOATS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "F32": lambda raw: raw.view(np.float32).copy(),
    "F16": lambda raw: raw.view(np.float16).astype(np.float32),
    "BF16": lambda raw: (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
}
