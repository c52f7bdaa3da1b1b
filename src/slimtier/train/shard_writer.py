"""Finished conversations on disk: shards of safetensors, listed with their checksums once they are complete."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from slimtier.errors import InputError
from slimtier.files import append_line, write_whole
from slimtier.train.answered import Answered
from slimtier.train.shards import LIST

SHARD_BYTES = 64 << 20


def position_bytes(width: int) -> int:
    """Bytes on disk for one position: its states in float16, its id and its mark."""
    return 2 * width + 5


def answer_bytes(top_n: int) -> int:
    """Bytes on disk that an answer token adds: ids in 4 bytes, log probabilities in 2."""
    return 6 * top_n


class ShardWriter:
    """Appends shards to `directory`; a shard counts from the moment its line is in shards.jsonl.

    `answer_tokens`: in all shards and in the conversations that wait for the next; `bytes`: of the shards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines = read_list(directory)
        self.bytes = sum(line["bytes"] for line in self.lines)
        self.answer_tokens = sum(line["answer_tokens"] for line in self.lines)
        self._rows: list[Answered] = []
        self._pending = 0  # bytes

    def add(self, row: Answered) -> bool:
        """Keep a conversation; True when that completed a shard."""
        self._rows.append(row)
        self.answer_tokens += len(row.top_ids)
        self._pending += row.features.nbytes + row.top_ids.nbytes + row.top_logprobs.nbytes
        if self._pending < SHARD_BYTES:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write what is pending as a shard of its own."""
        if not self._rows:
            return
        name = f"shard-{len(self.lines):05d}.safetensors"
        tensors = _tensors(self._rows)
        content = save(tensors)
        write_whole(self.directory / name, content)
        line = {
            "name": name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
            "rows": len(self._rows),
            "positions": len(tensors["token_ids"]),
            "answer_tokens": len(tensors["top_ids"]),
        }
        append_line(self.directory / LIST, json.dumps(line))
        self.lines.append(line)
        self.bytes += line["bytes"]
        self._rows, self._pending = [], 0

    def done(self) -> set[int]:
        """The numbers of the conversations that complete shards hold."""
        from safetensors import safe_open

        numbers: set[int] = set()
        for line in self.lines:
            with safe_open(self.directory / line["name"], framework="pt") as shard:
                numbers.update(shard.get_tensor("numbers").tolist())
        return numbers


def read_list(directory: Path) -> list[dict[str, Any]]:
    """The complete shards; a last line that a kill cut short is taken off. Raises InputError for any other damage."""
    path = directory / LIST
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole, _, cut = text.rpartition("\n")
    if cut:
        write_whole(path, f"{whole}\n".encode() if whole else b"")
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        raise InputError(f"{path} is damaged: delete the directory and capture again") from None


def _tensors(rows: list[Answered]) -> dict[str, torch.Tensor]:
    ends = torch.tensor([0, *(len(row.token_ids) for row in rows)], dtype=torch.int64).cumsum(0)
    return {
        "token_ids": torch.cat([row.token_ids for row in rows]),
        "offsets": ends,
        "numbers": torch.tensor([row.number for row in rows], dtype=torch.int64),
        "answer": torch.cat([row.answer for row in rows]),
        "features": torch.cat([row.features for row in rows]),
        "top_ids": torch.cat([row.top_ids for row in rows]),
        "top_logprobs": torch.cat([row.top_logprobs for row in rows]),
    }
