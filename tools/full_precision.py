"""A quantised file's numbers as a directory of float32 safetensors, with its tokenizer.

    python -m tools.full_precision smollm2-135m build/smollm2-135m

For measuring on a full-precision checkpoint where only the quantised file is at hand: the same model, number by number,
but its weights are floats in memory, and a step is bound by reading them.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path


def main(given: Sequence[str] | None = None) -> None:
    """Refuses a place that is there already."""
    options = argparse.ArgumentParser(prog="python -m tools.full_precision", description=(__doc__ or "").split("\n")[0])
    options.add_argument("model", help="a GGUF file, or a name for one")
    options.add_argument("out", type=Path)
    arguments = options.parse_args(given)
    if arguments.out.exists():
        options.error(f"{arguments.out} exists")
    from transformers import AutoTokenizer

    from slimtier.bench.checkpoint import write_checkpoint
    from slimtier.models.native import open_weights
    from slimtier.models.resolve import resolve

    files = resolve(arguments.model)
    if files.kind != "gguf":
        options.error(f"{arguments.model} is no GGUF file, so it is one already")
    beside = arguments.out.with_name(f".{arguments.out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(open_weights(files), beside)
    AutoTokenizer.from_pretrained(str(files.path.parent), gguf_file=files.path.name).save_pretrained(beside)
    beside.rename(arguments.out)


if __name__ == "__main__":
    main()
