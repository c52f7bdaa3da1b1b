"""From what the user names to a target that runs and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimtier.errors import ConfigError

if TYPE_CHECKING:
    from slimtier.models.base import Target

RUNTIMES = ("auto", "native", "hf")
PRECISIONS = ("auto", "fp32", "bf16", "q8", "q4")
HF_PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a model is run. runtime auto = native: what native cannot run is an error that offers hf, never a slow path
    in silence. precision auto = the file's own (hf: fp32). threads None = the runtime's choice."""

    runtime: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise ConfigError(f"unknown runtime {self.runtime!r}: choose one of {', '.join(RUNTIMES)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {self.precision!r}: choose one of {', '.join(PRECISIONS)}")
        if self.runtime == "hf" and self.precision not in HF_PRECISIONS:
            raise ConfigError(f"runtime hf has no precision {self.precision}: choose one of {', '.join(HF_PRECISIONS)}")
        threads = self.threads
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ConfigError(f"threads is {threads!r}: give 1 or more, or leave it out")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target and the tokenizer of its files."""

    target: Target
    tokenizer: Any


def load(model: Any, options: RunOptions) -> Loaded:
    """Resolve an alias, a path or a hub id (or take resolved files), and load target and tokenizer."""
    from slimtier.models.resolve import ModelFiles, resolve
    from slimtier.models.tokenizer import load_tokenizer

    files = model if isinstance(model, ModelFiles) else resolve(str(model))
    target: Target
    if options.runtime == "hf":
        from slimtier.models.hf import HfTarget

        precision = "fp32" if options.precision == "auto" else options.precision
        target = HfTarget.from_pretrained(files.path, precision=precision, device=options.device, name=files.name)
    else:
        from slimtier.models.native import NativeTarget

        target = NativeTarget.from_pretrained(
            files, precision=options.precision, threads=options.threads, device=options.device
        )
    return Loaded(target, load_tokenizer(files))
