"""Put a trained draft into the package: 8-bit codes, with the record of how it was made.

    python -m tools.ship_draft run/draft smollm2-135m

The draft that `slimtier train` wrote is the fp16 master; its provenance goes along unchanged, beside the master's
checksum. slimtier then uses the draft by default for the model of that alias.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch

from slimtier.checkpoint import WEIGHTS
from slimtier.drafters.eagle.load import read_draft
from slimtier.drafters.eagle.open import SHIPPED
from slimtier.drafters.eagle.save import save_draft
from slimtier.models.aliases import ALIASES

MOST_BYTES = 14_000_000


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m tools.ship_draft"
    )
    options.add_argument("draft", type=Path)
    options.add_argument("alias", choices=sorted(ALIASES))
    arguments = options.parse_args()
    files = read_draft(arguments.draft)
    if files.target is None:
        raise SystemExit(f"{arguments.draft} does not say which model it is for: train it with slimtier")
    master = hashlib.sha256((arguments.draft / WEIGHTS).read_bytes()).hexdigest()
    state = {name: torch.from_numpy(tensor.dense()) for name, tensor in files.tensors.items()}
    place = SHIPPED / arguments.alias
    record = {**files.provenance, "master": {"dtype": "float16", "sha256": master}}
    save_draft(state, files.config, place, record, target=files.target, dtype="q8", replace=True)
    size = sum(file.stat().st_size for file in place.iterdir())
    if size > MOST_BYTES:
        raise SystemExit(f"{place} has {size} bytes, more than {MOST_BYTES}: choose a smaller rank")
    print(f"{place}: {size} bytes")


if __name__ == "__main__":
    main()
