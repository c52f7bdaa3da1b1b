"""Rows in batches: which rows a step takes, and their tokens, features and labels packed.

Rows lie one after the other; nothing is padded, so rows of any lengths go together. The order depends on the seed and
the epoch alone, so a run that is resumed sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from slimtier.train.shards import Row, RowPlace, Rows

HELD_OUT = 50  # one row in so many is held out, by the digest of its tokens


@dataclass(frozen=True, slots=True)
class Split:
    """held_out: never trained on; validation: those of them that are looked at."""

    train: tuple[RowPlace, ...]
    held_out: tuple[RowPlace, ...]
    validation: tuple[RowPlace, ...]


def split_rows(rows: Sequence[RowPlace], validation_rows: int) -> Split:
    """By each row's own digest, so that a row stays on its side however many others there are. With too few rows for
    that, the one with the smallest digest is held out."""
    ordered = sorted(rows, key=lambda row: row.digest)
    held = [row for row in ordered if row.digest % HELD_OUT == 0]
    if not held and len({row.digest for row in rows}) > 1:
        held = [row for row in ordered if row.digest == ordered[0].digest]
    taken = {row.digest for row in held}
    train = tuple(row for row in rows if row.digest not in taken)
    return Split(train, tuple(held), tuple(held[:validation_rows]))


def epoch_batches(rows: Sequence[RowPlace], batch_tokens: int, seed: int, epoch: int) -> list[list[RowPlace]]:
    """The rows shuffled, in batches of about `batch_tokens` labelled slots each; every row is in one of them."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(rows), generator=generator).tolist()
    total = sum(row.labels for row in rows)
    count = max(1, round(total / batch_tokens))
    batches: list[list[RowPlace]] = [[]]
    seen = 0
    for index in order:  # a batch ends where its even share of the epoch does, so the last one is no remnant
        if batches[-1] and seen + rows[index].labels / 2 > total * len(batches) / count and len(batches) < count:
            batches.append([])
        batches[-1].append(rows[index])
        seen += rows[index].labels
    return batches


class Schedule:
    """Batches by step, over as many epochs as it takes."""

    position = 0

    def __init__(self, rows: Sequence[RowPlace], batch_tokens: int, seed: int) -> None:
        self.rows, self.batch_tokens, self.seed = rows, batch_tokens, seed
        self._starts = [0]  # the first step of each epoch that was looked at
        self._epoch: tuple[int, list[list[RowPlace]]] = (-1, [])

    def at(self, step: int) -> list[RowPlace]:
        """The rows of step `step`, from 0."""
        epoch = 0
        while True:
            if epoch + 1 >= len(self._starts):
                self._starts.append(self._starts[epoch] + len(self._batches(epoch)))
            if step < self._starts[epoch + 1]:
                return self._batches(epoch)[step - self._starts[epoch]]
            epoch += 1

    def steps(self, epochs: float) -> int:
        """How many steps `epochs` take, at least one."""
        whole = int(epochs)
        full = sum(len(self._batches(epoch)) for epoch in range(whole))
        part = len(self._batches(whole)) if epochs > whole else 0
        return max(1, full + round((epochs - whole) * part))

    def _batches(self, epoch: int) -> list[list[RowPlace]]:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_batches(self.rows, self.batch_tokens, self.seed, epoch))
        return self._epoch[1]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of slots with labels: slots first to stop of the batch (`Batch.slot_*`), at keys key_first to key_stop of
    a row whose keys begin at key_row."""

    first: int
    stop: int
    key_row: int
    key_first: int

    @property
    def key_stop(self) -> int:
        return self.key_first + self.stop - self.first


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows. A key is a position of a row up to its last slot, a slot one that has a label at the first step.

    text [T] int64: the rows' token ids; key_text [N]: where in it a key's token x_{t+1} is; positions [N]: t;
    features [N, streams · hidden] float16; slots [M]: the slots' keys; first_label [M]: the slot's label at the first
    step, the next step's is the next; num_labels [M]: how many it has before its answer ends; top_ids, top_logprobs
    [A, n]: the labels; row_seeds: of each segment, for what is drawn at random for its row.
    """

    text: torch.Tensor
    key_text: torch.Tensor
    positions: torch.Tensor
    features: torch.Tensor
    slots: torch.Tensor
    first_label: torch.Tensor
    num_labels: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    segments: tuple[Segment, ...]
    rows: tuple[tuple[int, int], ...]  # the keys of each row
    row_seeds: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _TENSORS})


def pack(rows: Sequence[Row], digests: Sequence[int]) -> Batch:
    """Rows with at least one label each, packed; `digests` are the rows' own, for `row_seeds`."""
    parts = list(_parts(rows, digests))
    columns: dict[str, Any] = {name: torch.cat([part.tensors[name] for part in parts]) for name in _TENSORS}
    return Batch(
        **columns,
        segments=tuple(segment for part in parts for segment in part.segments),
        rows=tuple(part.keys for part in parts),
        row_seeds=tuple(seed for part in parts for seed in part.seeds),
    )


_TENSORS = (
    "text", "key_text", "positions", "features", "slots", "first_label", "num_labels", "top_ids", "top_logprobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    tensors: dict[str, torch.Tensor]
    segments: list[Segment]
    keys: tuple[int, int]
    seeds: list[int]


def _parts(rows: Sequence[Row], digests: Sequence[int]) -> Iterator[_Part]:
    texts = keys = slots = labels = 0  # packed so far
    for row, digest in zip(rows, digests, strict=True):
        segments: list[Segment] = []
        own_slots, own_labels, own_counts = [], [], []
        before, answers = slots, 0
        for first, stop in row.segments:
            begin = max(first, 2)  # no slot comes two before the first two tokens
            if stop > begin:
                count = stop - begin
                segments.append(Segment(slots, slots + count, keys, keys + begin - 2))
                own_slots.append(torch.arange(begin - 2, stop - 2) + keys)
                own_labels.append(torch.arange(count) + labels + answers + begin - first)
                own_counts.append(torch.arange(count, 0, -1))
                slots += count
            answers += stop - first
        size = segments[-1].key_stop - keys
        assert slots > before
        yield _Part(
            {
                "text": row.token_ids,
                "key_text": torch.arange(1, size + 1) + texts,
                "positions": torch.arange(size),
                "features": row.features[:size],
                "slots": torch.cat(own_slots),
                "first_label": torch.cat(own_labels),
                "num_labels": torch.cat(own_counts),
                "top_ids": row.top_ids,
                "top_logprobs": row.top_logprobs,
            },
            segments,
            (keys, keys + size),
            [(digest + index) & (2**63 - 1) for index in range(len(segments))],
        )
        texts, keys, labels = texts + len(row.token_ids), keys + size, labels + answers


def load(capture: Rows, places: Sequence[RowPlace]) -> Batch:
    """The rows at `places`, read and packed."""
    return pack([capture.read(place) for place in places], [place.digest for place in places])
