"""slimtier: decode a language model faster with speculation, and know what that did to the output."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimtier.engine import Engine as Engine
    from slimtier.errors import SlimtierError as SlimtierError
    from slimtier.hf_generate import custom_generate as custom_generate
    from slimtier.result import Result as Result
    from slimtier.result import Stream as Stream
    from slimtier.types import SamplingParams as SamplingParams
    from slimtier.types import StopParams as StopParams

_HOMES = {
    "Engine": "slimtier.engine",
    "Result": "slimtier.result",
    "SamplingParams": "slimtier.types",
    "SlimtierError": "slimtier.errors",
    "StopParams": "slimtier.types",
    "Stream": "slimtier.result",
    "custom_generate": "slimtier.hf_generate",
}

__all__ = [
    "Engine",
    "Result",
    "SamplingParams",
    "SlimtierError",
    "StopParams",
    "Stream",
    "__version__",
    "custom_generate",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used, so that `import slimtier` does not import torch."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("slimtier")
        except PackageNotFoundError:  # run from a source tree
            return "0+unknown"
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slimtier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
