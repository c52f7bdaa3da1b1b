"""The head of a GGUF file: metadata and tensor table, read without touching the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
Arrays of strings (vocabulary, merges) are stepped over and read only when asked for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimtier.errors import ModelFileError, UnsupportedError

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_DIMS = 4
_MAX_NAME = 256

# type id -> (name, values a block, bytes a block)
BLOCK_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: shape as torch orders it (rows first), type name, its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings, not read yet."""

    data: mmap.mmap
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self) -> list[str]:
        """All strings; bytes that are no UTF-8 become U+FFFD."""
        strings, at = [], self.start
        for _ in range(self.count):
            (length,) = _U64.unpack_from(self.data, at)
            at += 8 + length
            strings.append(self.data[at - length : at].decode("utf-8", "replace"))
        return strings


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata (string arrays as StringArray, number arrays as numpy) and the tensor table of a file."""

    path: Path
    data: mmap.mmap
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]

    def raw(self, entry: TensorEntry) -> NDArray[np.uint8]:
        """The bytes of a tensor, mapped, read-only: uint8 [num_bytes]."""
        return np.frombuffer(self.data, dtype=np.uint8, count=entry.num_bytes, offset=entry.start)

    def strings(self, key: str) -> list[str]:
        """The array of strings under `key`, or [] when the file has none."""
        value = self.metadata.get(key)
        return value.read() if isinstance(value, StringArray) else []


def read_header(path: Path) -> GgufHeader:
    """Read the head of the GGUF file `path`.

    Raises ModelFileError when the file is missing, no GGUF, cut short or inconsistent; UnsupportedError for a
    version, byte order or tensor type that is not read.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelFileError(f"cannot read {path}: {error}; check the path, or fetch the file again") from error
    if data[:4] != b"GGUF":
        raise ModelFileError(f"{path} is no GGUF file (it starts with {bytes(data[:4])!r}); fetch it again")
    try:
        return _parse(path, data)
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise ModelFileError(f"{path} is damaged or cut short in its header ({error}); fetch it again") from error


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    version, tensor_count, key_count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise UnsupportedError(
            f"{path} is GGUF version {version} (or big-endian), native reads 2 and 3; convert it again "
            "or try --runtime hf"
        )
    cursor = _Cursor(data, 24)
    metadata = {}
    for _ in range(key_count):
        key = cursor.name()
        metadata[key] = cursor.value(cursor.scalar(_U32))
    table = [_table_row(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"general.alignment is {alignment}")
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, dims, type_id, offset in table:
        entry = _entry(path, name, dims, type_id, base + offset)
        if entry.start + entry.num_bytes > len(data):
            raise ModelFileError(
                f"{path} is truncated: tensor {name} ends at byte {entry.start + entry.num_bytes}, "
                f"the file has {len(data)}; fetch it again"
            )
        tensors[name] = entry
    return GgufHeader(path, data, metadata, tensors)


def _table_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.name()
    num_dims = cursor.scalar(_U32)
    if num_dims > _MAX_DIMS:
        raise ValueError(f"tensor {name} has {num_dims} dimensions")
    dims = tuple(cursor.scalar(_U64) for _ in range(num_dims))
    return name, dims, cursor.scalar(_U32), cursor.scalar(_U64)


def _entry(path: Path, name: str, dims: tuple[int, ...], type_id: int, start: int) -> TensorEntry:
    if type_id not in BLOCK_TYPES:
        raise UnsupportedError(
            f"{path}: tensor {name} is quantised as {_foreign_type(type_id)}, native reads "
            f"{', '.join(type_name for type_name, _, _ in BLOCK_TYPES.values())}; try --runtime hf"
        )
    type_name, block, block_bytes = BLOCK_TYPES[type_id]
    if not dims or dims[0] % block:
        raise ValueError(f"tensor {name} has rows of {dims[:1]} values, {type_name} blocks hold {block}")
    count = 1
    for dim in dims:
        count *= dim
    # the file orders dimensions fastest-moving first
    return TensorEntry(name, dims[::-1], type_name, start, count // block * block_bytes)


def _foreign_type(type_id: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return GGMLQuantizationType(type_id).name
    except ValueError:
        return f"ggml type {type_id}"


class _Cursor:
    """A position in the mapped file; every read moves it on. Reading past the end raises struct.error or ValueError."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def scalar(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def string(self) -> str:
        length = self.scalar(_U64)
        if length > len(self.data) - self.at:
            raise ValueError(f"a string of {length} bytes at byte {self.at}")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def name(self) -> str:
        """A string that may stand in a message."""
        at, name = self.at, self.string()
        if not name.isprintable() or len(name) > _MAX_NAME:
            raise ValueError(f"no name of a key or tensor at byte {at}")
        return name

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self.array()
        if type_id not in _SCALARS:
            raise ValueError(f"a metadata value of unknown type {type_id} at byte {self.at}")
        return self.scalar(_SCALARS[type_id])

    def array(self) -> Any:
        type_id, count = self.scalar(_U32), self.scalar(_U64)
        if type_id == _STRING:
            start = self.at
            self.at = _skip_strings(_U64.unpack_from, self.data, start, count)
            return StringArray(self.data, start, count)
        if type_id not in _SCALARS:
            raise ValueError(f"a metadata array of type {type_id} at byte {self.at}")
        dtype = np.dtype(_SCALARS[type_id].format)
        values = np.frombuffer(self.data, dtype=dtype, count=count, offset=self.at).copy()
        self.at += values.nbytes
        return values


def _skip_strings(unpack: Callable[..., tuple[int]], data: mmap.mmap, at: int, count: int) -> int:
    """The position after `count` strings: called for a quarter of a million strings, so kept to one line a string."""
    for _ in range(count):
        at += 8 + unpack(data, at)[0]
    if at > len(data):
        raise ValueError("an array of strings runs past the end")
    return at
