"""A draft's head as one matrix over the whole vocabulary, which programs without low-rank heads read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from slimtier.drafters.eagle.config import HeadConfig
from slimtier.drafters.eagle.load import DraftFiles, read_draft
from slimtier.drafters.eagle.save import save_draft
from slimtier.errors import ConfigError


def whole_head(files: DraftFiles, target: torch.Tensor) -> torch.Tensor:
    """The draft's head as a full one [vocab, hidden]; `target`, its target's, gives the rows that it has not."""
    if files.config.head.kind == "slim":
        return torch.from_numpy(files.tensors["head.up"].dense() @ files.tensors["head.down"].dense())
    rows = torch.from_numpy(files.tensors["head.weight"].dense())
    if files.ids is None:
        return rows
    return target.index_copy(0, torch.from_numpy(files.ids), rows)


def save_whole(source: Path, out: Path, provenance: Mapping[str, Any]) -> None:
    """Write the slim draft in `source` with a full head, in float32, as vLLM's EAGLE-3 reads it. Raises ConfigError
    where its head is of another kind, or it does not say what its target is."""
    files = read_draft(source)
    if files.config.head.kind != "slim" or files.target is None:
        what = f"a {files.config.head.kind} head" if files.target else "no record of its target"
        raise ConfigError(f"{source} has {what}: only a slim draft of slimtier's is written with a full head")
    state = {name: torch.from_numpy(t.dense()) for name, t in files.tensors.items() if not name.startswith("head.")}
    state["head.weight"] = whole_head(files, torch.empty(0))
    config = replace(files.config, head=HeadConfig("full", files.config.head.vocab_size))
    save_draft(state, config, out, provenance, target=files.target, dtype="fp32")
