"""Makes one capture of several, for a run that learns from all of them.

    python -m tools.merge_captures CAPTURED [CAPTURED ...] --out MERGED

The captures must be of the same model, layers and top_n. Shards are linked, not copied; the sums for the warm start
are added up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from slimtier.errors import InputError
from slimtier.train.shards import LIST, MANIFEST, STATISTICS

MUST_AGREE = ("model", "tokenizer_sha256", "vocab_size", "hidden_size", "num_layers", "layers", "top_n")


def main(given: Sequence[str] | None = None) -> int:
    """Write the merged capture; 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m tools.merge_captures", description=__doc__.split("\n\n")[0])
    parser.add_argument("captures", nargs="+", type=Path, metavar="CAPTURED")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(given)
    try:
        merge(arguments.captures, arguments.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def merge(captures: Sequence[Path], out: Path) -> None:
    """Raises InputError for captures that do not go together, or a directory that is there already."""
    manifests = [json.loads((path / MANIFEST).read_text()) for path in captures]
    for path, manifest in zip(captures, manifests, strict=True):
        wrong = next((key for key in MUST_AGREE if manifest.get(key) != manifests[0].get(key)), None)
        if wrong is not None:
            raise InputError(f"{path} has another {wrong} than {captures[0]}: they cannot be merged")
    if out.exists():
        raise InputError(f"{out} is there already: give a new directory")
    out.mkdir(parents=True)
    lines = []
    for path in captures:
        for line in (path / LIST).read_text().splitlines():
            entry = json.loads(line)
            name = f"shard-{len(lines):05}.safetensors"
            os.link(path / entry["name"], out / name)
            lines.append(json.dumps(entry | {"name": name}))
    sums = [load_file(path / STATISTICS) for path in captures]
    save_file({name: sum(one[name] for one in sums) for name in sums[0]}, out / STATISTICS)
    (out / LIST).write_text("\n".join(lines) + "\n")
    sources = [manifest["provenance"] for manifest in manifests]
    (out / MANIFEST).write_text(
        json.dumps(manifests[0] | {"provenance": sources[0] | {"merged": sources[1:]}}, indent=1)
    )


if __name__ == "__main__":
    sys.exit(main())
