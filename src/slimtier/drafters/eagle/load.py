"""A draft's directory -> its config, its tensors under the network's names, and the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from slimtier.checkpoint import CONFIG, OWN, Checkpoint, integers, is_integral, read_checkpoint, require_tensors
from slimtier.config import read_dataclass
from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.layout_config import ReadConfig, read_config
from slimtier.drafters.eagle.layouts import (
    CODES,
    EMBEDDING,
    MEMBERS,
    OFFSETS,
    SCALES,
    Layout,
    network_names,
    network_shapes,
    one_spelling,
    spelt,
    vocabulary_rows,
)
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.stored import GROUP, CodedTensor, ReorderedTensor
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.errors import ConfigError, ModelFileError
from slimtier.models.safetensors_file import SafeTensor
from slimtier.models.tensors import StoredTensor

HeadSource = Literal["file", "target", "embedding"]
_HEAD = "head.weight"
_PASSED_OVER = ("verifier_norm.weight", "verifier_lm_head.weight")  # the target's, left in by a trainer


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A draft checkpoint, opened and checked; no weight is read yet.

    `tensors` have the names of `EagleNetwork.state_dict`, and "embedding" if the file has one. `ids` are the target's
    ids of a trimmed head's rows, ascending. `head_source`: who has the head's matrix. `target` and `provenance` are
    what the file tells of its making. `notes` are to be shown: what was guessed, or not used.
    """

    path: Path
    layout: Layout
    config: EagleConfig
    tensors: Mapping[str, StoredTensor]
    ids: NDArray[np.int64] | None
    head_source: HeadSource
    max_positions: int
    target: TargetRecord | None
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]


def read_draft(path: Path | str, target_layers: int | None = None) -> DraftFiles:
    """Open the draft in the directory `path`. `target_layers`: how many layers its target has, if that is known.

    Raises ModelFileError (a file or tensor that is missing, damaged or of another shape than the config asks for; a
    field that is unknown or contradictory) and UnsupportedError (a draft that slimtier does not run).
    """
    checkpoint = read_checkpoint(Path(path))
    read = read_config(checkpoint.path / CONFIG, checkpoint.config, target_layers)
    tensors = _Tensors.sorted(checkpoint, read)
    source = _head_source(read, tensors)
    names = {theirs: ours for theirs, ours in network_names(read.config).items() if ours != _HEAD or source == "file"}
    _require(read, tensors, names)
    stored = {ours: tensors.stored[theirs] for theirs, ours in names.items()}
    order, ids = _vocabulary(read, tensors)
    if order is not None:
        for name in vocabulary_rows(read.config.head.kind):
            stored[name] = ReorderedTensor.of(stored[name], order)
    if EMBEDDING in tensors.stored:
        stored["embedding"] = tensors.stored[EMBEDDING]
    return DraftFiles(
        path=checkpoint.path,
        layout=read.layout,
        config=read.config,
        tensors=stored,
        ids=ids,
        head_source=source,
        max_positions=read.max_positions,
        target=_target(checkpoint),
        provenance=checkpoint.provenance,
        notes=(*read.notes, *_head_notes(checkpoint, source)),
    )


@dataclass(slots=True)
class _Tensors:
    """What a file holds, names in the one spelling: numbers, and integers beside them."""

    path: Path
    stored: dict[str, StoredTensor] = field(default_factory=dict)
    integral: dict[str, SafeTensor] = field(default_factory=dict)

    @classmethod
    def sorted(cls, checkpoint: Checkpoint, read: ReadConfig) -> _Tensors:
        found = cls(checkpoint.path)
        plain: dict[str, SafeTensor] = {}
        for theirs, tensor in checkpoint.tensors.items():
            name = one_spelling(theirs)
            if name in plain:
                raise ModelFileError(f"{checkpoint.path} has tensor {theirs} twice, by two names; convert it again")
            if name not in _PASSED_OVER and not name.endswith("rotary_emb.inv_freq"):
                plain[name] = tensor
        if read.quantised:
            found._pair(plain)
        for name, tensor in plain.items():
            (found.integral if is_integral(tensor) else found.stored)[name] = tensor
        return found

    def _pair(self, plain: dict[str, SafeTensor]) -> None:
        """Take codes and scales out of `plain`, and make one tensor of both."""
        for name in [name.removesuffix(CODES) for name in plain if name.endswith(CODES)]:
            codes, scales = plain.pop(name + CODES), plain.pop(name + SCALES, None)
            wanted = (codes.shape[0], -(-codes.shape[-1] // GROUP))
            if codes.source != "I8" or scales is None or scales.shape != wanted or is_integral(scales):
                raise ModelFileError(
                    f"{self.path}: {name}{CODES} is no matrix of 8-bit codes with scales {list(wanted)} in "
                    f"{name}{SCALES}; write the draft again"
                )
            self.stored[name] = CodedTensor.of(codes, scales)


def _head_source(read: ReadConfig, tensors: _Tensors) -> HeadSource:
    if "lm_head.weight" in tensors.stored:
        return "file"
    if read.borrows is None:
        hint = "" if read.config.head.kind != "full" else ", or set draft_vocab_size to null to use the target's head"
        raise ModelFileError(
            f"{tensors.path} lacks tensor {spelt('lm_head.weight', read.layout)}; fetch or convert it again{hint}"
        )
    return "embedding" if read.borrows == "embedding" else "target"


def _head_notes(checkpoint: Checkpoint, source: HeadSource) -> list[str]:
    if source != "file":
        return [f"the head's matrix is the {source}'s, as config.json says"]
    if checkpoint.config.get("tie_word_embeddings"):
        return ["config.json: tie_word_embeddings was not used, since the file has a head of its own"]
    return []


def _require(read: ReadConfig, tensors: _Tensors, names: Mapping[str, str]) -> None:
    """Every tensor is there, has its shape, and none is left over."""
    shapes = network_shapes(read.config)
    expected = {theirs: shapes[ours] for theirs, ours in names.items()}
    found = {name: tensor.shape for name, tensor in (tensors.stored | tensors.integral).items()}
    head = read.config.head
    if EMBEDDING in found:
        expected[EMBEDDING] = (head.vocab_size, read.config.hidden_size)
    if head.kind == "trimmed" or OFFSETS in found:
        expected[OFFSETS] = (read.draft_vocab_size,)
    if MEMBERS in found:
        expected[MEMBERS] = (head.vocab_size,)
    for name in expected:
        if name in found and (name in tensors.integral) != (name in (OFFSETS, MEMBERS)):
            raise ModelFileError(f"{tensors.path}: tensor {name} has the wrong kind of numbers; convert it again")
    rename = {name: spelt(name, read.layout) for name in (*expected, *found)}
    require_tensors(
        tensors.path,
        {rename[name]: shape for name, shape in expected.items()},
        {rename[name]: shape for name, shape in found.items()},
    )


def _vocabulary(read: ReadConfig, tensors: _Tensors) -> tuple[NDArray[np.intp] | None, NDArray[np.int64] | None]:
    """In which order the head's rows have ascending ids (None: they have), and a trimmed head's ids in that order."""
    if OFFSETS not in tensors.integral:
        return None, None
    rows, vocab = read.draft_vocab_size, read.config.head.vocab_size
    offsets = integers(tensors.integral[OFFSETS]).astype(np.int64)
    ids = np.arange(rows) + offsets
    members = integers(tensors.integral[MEMBERS]).astype(bool) if MEMBERS in tensors.integral else None
    problem = _problem(ids, vocab, members)
    if problem is not None:
        absolute = members is not None and _problem(offsets, vocab, members) is None
        hint = " (as ids instead of offsets it would fit)" if absolute else ""
        raise ModelFileError(f"{tensors.path}: {OFFSETS} {problem}{hint}; convert the draft again")
    order = np.argsort(ids)
    in_order = bool((order == np.arange(rows)).all())
    return None if in_order else order, ids[order] if rows < vocab else None


def _problem(ids: NDArray[np.int64], vocab: int, members: NDArray[np.bool_] | None) -> str | None:
    """What is wrong with the ids of a head's rows."""
    if ids.min() < 0 or ids.max() >= vocab:
        return f"leads outside the target's {vocab} tokens"
    if len(np.unique(ids)) < len(ids):
        return "leads to a token twice"
    if members is not None and not np.array_equal(np.flatnonzero(members), np.sort(ids)):
        return f"and {MEMBERS} name different tokens"
    return None


def _target(checkpoint: Checkpoint) -> TargetRecord | None:
    block = checkpoint.config.get(OWN) or {}
    if "target" not in block:
        return None
    try:
        return read_dataclass(TargetRecord, block["target"], f"{checkpoint.path / CONFIG}: {OWN}.target")
    except ConfigError as error:
        raise ModelFileError(f"{error}; write the draft again") from error


def load_network(
    files: DraftFiles, embedding: torch.Tensor, max_positions: int, head: torch.Tensor | None = None
) -> EagleNetwork:
    """The network in torch, float32. `embedding` [vocab, hidden] is the target's, and kept unless the file has another
    of its own; `head` [vocab, hidden] is the target's, for a draft that borrows it.

    Raises ModelFileError when what the target has is of another shape.
    """
    shape = (files.config.head.vocab_size, files.config.hidden_size)
    embedding = own_embedding(files, embedding)
    state = {name: torch.from_numpy(tensor.dense()) for name, tensor in files.tensors.items() if name != "embedding"}
    if files.head_source == "target":
        if head is None or tuple(head.shape) != shape:
            found = "none was given" if head is None else f"it has {list(head.shape)}"
            raise ModelFileError(f"{files.path} uses the target's head, which must be {list(shape)}: {found}")
        state[_HEAD] = head
    if files.head_source == "embedding":
        state[_HEAD] = embedding
    if files.ids is not None:
        state["head.ids"] = torch.from_numpy(files.ids)
    network = EagleNetwork(files.config, embedding, max_positions)
    network.load_state_dict(state, strict=True)
    return network.eval()


def own_embedding(files: DraftFiles, target: torch.Tensor) -> torch.Tensor:
    """The embedding [vocab, hidden] that the draft reads: the file's if it differs from the target's."""
    shape = (files.config.head.vocab_size, files.config.hidden_size)
    stored = files.tensors.get("embedding")
    if stored is not None:
        own = torch.from_numpy(stored.dense())
        return target if target.shape == own.shape and torch.equal(own, target) else own
    if tuple(target.shape) != shape:
        raise ModelFileError(
            f"{files.path} reads an embedding of {list(shape)} and the target's has {list(target.shape)}: "
            "it was made for another target"
        )
    return target
