"""A capture directory, opened for training: which rows can be learned from, and their contents when asked for.

Shards are checked once, when the directory is opened (digest, shapes, numbers); after that a row is read from the
mapped file. The format is `train/capture.py`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from slimtier.errors import InputError, ModelFileError

FORMAT = 1
MANIFEST, LIST, STATISTICS = "capture.json", "shards.jsonl", "statistics.safetensors"
_PROGRESS = Callable[[int, int], None]  # shards done, of how many


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What was captured. layers: the target's layers whose outputs the features are; top_n: target tokens kept;
    tokenizer_sha256: of the tokenizer's own form, None if the target had none."""

    model: str
    tokenizer_sha256: str | None
    vocab_size: int
    hidden_size: int
    num_layers: int
    layers: tuple[int, ...]
    top_n: int
    provenance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One complete shard, as shards.jsonl lists it."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row is: positions start to end of shard `shard`, its answer tokens from `answer_start` on.
    segments: the runs of answer tokens (first, past the last, in the row); digest: of its token ids."""

    shard: int
    start: int
    end: int
    answer_start: int
    segments: tuple[tuple[int, int], ...]
    digest: int

    @property
    def labels(self) -> int:
        """Slots with a label at the first draft step: an answer token's label belongs to the slot two before it."""
        return sum(max(stop - max(first, 2), 0) for first, stop in self.segments)


@dataclass(frozen=True, slots=True)
class Row:
    """A row's contents: token_ids [L] int64, features [L, streams · hidden] float16, top_ids [A, n] int64 and
    top_logprobs [A, n] float32 of its answer tokens in order, and the runs of these."""

    token_ids: torch.Tensor
    features: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    segments: tuple[tuple[int, int], ...]


class Rows(Protocol):
    """Where rows come from: a capture directory, or what the target has just written. `identity`: what two runs must
    have in common for one to go on with the other; `dropped`: reason -> rows that cannot be learned from."""

    @property
    def info(self) -> CaptureInfo: ...
    @property
    def identity(self) -> tuple[str, ...]: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    def sums(self) -> Mapping[str, torch.Tensor]: ...
    def read(self, place: RowPlace) -> Row: ...
    def read_tokens(self, place: RowPlace) -> torch.Tensor: ...
    def read_labels(self, place: RowPlace) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class Capture:
    """An opened capture directory. rows: the usable ones; dropped: reason -> how many were not."""

    directory: Path
    info: CaptureInfo
    shards: tuple[ShardEntry, ...]
    rows: tuple[RowPlace, ...]
    dropped: Mapping[str, int]
    _files: tuple[Any, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        """The digest of each shard."""
        return tuple(entry.sha256 for entry in self.shards)

    def sums(self) -> Mapping[str, torch.Tensor]:
        """The normal equations. Raises ModelFileError when they cannot be read."""
        path = self.directory / STATISTICS
        try:
            sums: dict[str, torch.Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelFileError(f"cannot read {path} ({error!r}): capture again") from error
        return sums

    def read(self, place: RowPlace) -> Row:
        """The row's contents, from the mapped shard."""
        features = self._files[place.shard].get_slice("features")[place.start : place.end]
        top_ids, top_logprobs = self.read_labels(place)
        return Row(self.read_tokens(place), features, top_ids, top_logprobs, place.segments)

    def read_tokens(self, place: RowPlace) -> torch.Tensor:
        """The row's token ids [L] alone."""
        token_ids: torch.Tensor = self._files[place.shard].get_slice("token_ids")[place.start : place.end]
        return token_ids.long()

    def read_labels(self, place: RowPlace) -> tuple[torch.Tensor, torch.Tensor]:
        """top_ids and top_logprobs [A, n] of the row's answer tokens alone."""
        file, answers = self._files[place.shard], sum(stop - first for first, stop in place.segments)
        where = slice(place.answer_start, place.answer_start + answers)
        return file.get_slice("top_ids")[where].long(), file.get_slice("top_logprobs")[where].float()


def open_capture(directory: Path, *, only_first: int | None = None, progress: _PROGRESS | None = None) -> Capture:
    """Open the complete shards of a capture directory (only_first: no later ones) and check all of it.

    Raises ModelFileError (a missing or damaged file) and InputError (not one usable row).
    """
    info = _info(directory)
    entries = _entries(directory)[:only_first]
    rows: list[RowPlace] = []
    dropped: Counter[str] = Counter()
    files = []
    for index, entry in enumerate(entries):
        files.append(_checked_shard(directory / entry.name, entry, info))
        found, bad = _rows(files[-1], index, info)
        rows += found
        dropped += bad
        if progress is not None:
            progress(index + 1, len(entries))
    if not rows:
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "no complete shard"
        raise InputError(f"{directory} has no usable row ({why}): capture more, or look at what was captured")
    return Capture(directory, info, tuple(entries), tuple(rows), dict(dropped), tuple(files))


def _info(directory: Path) -> CaptureInfo:
    path = directory / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise ModelFileError(f"{path} is of format {values['format']}, this slimtier reads {FORMAT}: capture again")
        return info_of(values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"cannot read {path}: {error!r}; name a directory that `slimtier capture` wrote"
        ) from error


def info_of(manifest: Mapping[str, Any]) -> CaptureInfo:
    """The part of a capture's manifest that training reads."""
    return CaptureInfo(
        model=str(manifest["model"]),
        tokenizer_sha256=manifest["tokenizer_sha256"],
        vocab_size=int(manifest["vocab_size"]),
        hidden_size=int(manifest["hidden_size"]),
        num_layers=int(manifest["num_layers"]),
        layers=tuple(int(layer) for layer in manifest["layers"]),
        top_n=int(manifest["top_n"]),
        provenance=dict(manifest["provenance"]),
    )


def _entries(directory: Path) -> list[ShardEntry]:
    """The shards listed as complete; a last line that was cut off is a shard that is not."""
    path = directory / LIST
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    entries = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        try:
            value = json.loads(line)
            entries.append(ShardEntry(str(value["name"]), str(value["sha256"])))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) - 1 and not text.endswith("\n"):
                break
            raise ModelFileError(f"{path}, line {number + 1}, is damaged ({error!r}): remove the line") from error
    return entries


def _checked_shard(path: Path, entry: ShardEntry, info: CaptureInfo) -> Any:
    """The mapped shard, its bytes and its shapes checked."""
    mend = "capture it again, or take its line out of shards.jsonl"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry.sha256:
            raise ModelFileError(f"{path} is damaged (sha256 {digest}, listed as {entry.sha256}): {mend}")
        shard: Any = safe_open(path, framework="pt")
        shapes = {name: tuple(shard.get_slice(name).get_shape()) for name in shard.keys()}  # noqa: SIM118
        positions, answers = shapes["token_ids"][0], shapes["top_ids"][0]
        expected = {
            "features": (positions, len(info.layers) * info.hidden_size),
            "answer": (positions,),
            "top_ids": (answers, info.top_n),
            "top_logprobs": (answers, info.top_n),
        }
        wrong = [name for name, shape in expected.items() if shapes[name] != shape]
        counted = int(shard.get_tensor("answer").sum(dtype=torch.int64))
    except (OSError, SafetensorError, KeyError, IndexError) as error:
        raise ModelFileError(f"cannot read {path} ({error!r}): {mend}") from error
    if wrong or counted != answers:
        what = f"{wrong[0]} has shape {list(shapes[wrong[0]])}" if wrong else f"it marks {counted} answer tokens"
        raise ModelFileError(f"{path} does not hold together ({what}; {positions} positions, {answers} labels): {mend}")
    return shard


def _rows(file: Any, shard: int, info: CaptureInfo) -> tuple[list[RowPlace], Counter[str]]:
    """The shard's usable rows, and why the others are not."""
    tokens, offsets = file.get_tensor("token_ids"), file.get_tensor("offsets").tolist()
    answer = file.get_tensor("answer").bool()
    before = torch.cat((torch.zeros(1, dtype=torch.int64), answer.cumsum(0))).tolist()
    features_ok = _finite_rows(file.get_tensor("features")).tolist()
    labels_ok = _usable_labels(file, info.vocab_size).tolist()
    tokens_ok = ((tokens >= 0) & (tokens < info.vocab_size)).tolist()
    rows: list[RowPlace] = []
    dropped: Counter[str] = Counter()
    for start, end in pairwise(offsets):
        if not 0 <= start < end <= len(tokens) or not all(tokens_ok[start:end]):
            dropped["with wrong lengths or token ids"] += 1
            continue
        if not all(features_ok[start:end]) or not all(labels_ok[before[start] : before[end]]):
            dropped["with numbers that cannot be"] += 1
            continue
        place = RowPlace(shard, start, end, before[start], runs(answer[start:end]), digest_of(tokens[start:end]))
        if place.labels > 0:
            rows.append(place)
        else:
            dropped["without an answer to learn from"] += 1
    return rows, dropped


def digest_of(token_ids: torch.Tensor) -> int:
    """Of a row's token ids [L] int32."""
    return int.from_bytes(hashlib.sha256(token_ids.numpy().tobytes()).digest()[:8], "little")


def _finite_rows(values: torch.Tensor) -> torch.Tensor:
    """[N, W] float16 -> [N]: whether all of a row is finite (a float32 sum of so few halves cannot overflow)."""
    return torch.cat([part.sum(1, dtype=torch.float32).isfinite() for part in torch.split(values, 4096)])


def _usable_labels(file: Any, vocab_size: int) -> torch.Tensor:
    """[A]: ids of the vocabulary with log probabilities that are numbers, and not above 0 but for rounding."""
    ids, logprobs = file.get_tensor("top_ids"), file.get_tensor("top_logprobs")
    usable: torch.Tensor = ((ids >= 0) & (ids < vocab_size) & (logprobs <= 0.01)).all(1)  # NaN compares false
    return usable


def runs(answer: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """The runs of True in answer [L]: (first, past the last)."""
    edge = torch.zeros(1, dtype=torch.int8)
    change = torch.diff(torch.cat((edge, answer.to(torch.int8), edge)))
    return tuple(zip((change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist(), strict=True))
