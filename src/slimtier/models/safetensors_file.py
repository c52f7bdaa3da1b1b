"""A directory of config.json and *.safetensors as ModelWeights.

Format: https://github.com/huggingface/safetensors (8 bytes of length, a JSON head, the bytes of all tensors). It is
read here so that bfloat16 and mapped memory need neither torch nor a copy.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.end_tokens import directory_end_ids, read_json
from slimtier.models.expected import check_tensors
from slimtier.models.floats import READ_FLOATS
from slimtier.models.hf_config import hf_config
from slimtier.models.tensors import Codes, ModelWeights, StoredTensor

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def open_safetensors(directory: Path) -> ModelWeights:
    """Open the model in `directory`: its config is read and every tensor checked, the weights stay on disk.

    Raises ModelFileError (missing or damaged file, a tensor missing or misshapen) and UnsupportedError (a class,
    setting or number format native does not run).
    """
    path = directory / "config.json"
    values = read_json(path)
    if not values:
        raise ModelFileError(f"{directory} has no config.json; copy the model's config.json into it")
    config = hf_config(path, values)
    tensors = all_tensors(directory)
    for name in [name for name in tensors if name.endswith("rotary_emb.inv_freq")]:
        del tensors[name]  # old checkpoints keep what the config says anyway
    if config.vocab.tied:
        tensors.pop("lm_head.weight", None)
    check_tensors(directory, config, {name: tensor.shape for name, tensor in tensors.items()})
    if config.architecture.startswith("gemma"):
        for name, tensor in tensors.items():
            tensor.offset = 1.0 if name.endswith("norm.weight") else 0.0
    stored: dict[str, StoredTensor] = dict(tensors)
    return ModelWeights(config, stored, directory_end_ids(directory))


def all_tensors(directory: Path, item_bytes: Mapping[str, int] = FLOAT_BYTES) -> dict[str, SafeTensor]:
    """Every tensor of the model, whichever shard holds it. `item_bytes`: the formats that may be among them.

    Raises ModelFileError for missing, truncated or damaged files, UnsupportedError for another number format.
    """
    if not (directory / _WHOLE).is_file() and (directory / _INDEX).is_file():
        return _sharded(directory, item_bytes)
    files = [directory / _WHOLE] if (directory / _WHOLE).is_file() else sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        raise ModelFileError(
            f"{directory} has {len(files)} *.safetensors and neither {_WHOLE} nor {_INDEX}; fetch the model again"
        )
    return read_tensors(files[0], item_bytes)


def _sharded(directory: Path, item_bytes: Mapping[str, int]) -> dict[str, SafeTensor]:
    index = read_json(directory / _INDEX).get("weight_map")
    if not isinstance(index, dict):
        raise ModelFileError(f"{directory / _INDEX} has no weight_map; fetch the model again")
    shards = {}
    for shard in sorted(set(map(str, index.values()))):
        if Path(shard).name != shard:
            raise ModelFileError(
                f"{directory / _INDEX} names {shard}, which is no file beside it; fetch the model again"
            )
        shards[shard] = read_tensors(directory / shard, item_bytes)
    tensors = {}
    for name, shard in index.items():
        if name not in shards[shard]:
            raise ModelFileError(f"{directory / shard} lacks tensor {name}, which {_INDEX} puts there; fetch it again")
        tensors[name] = shards[shard][name]
    return tensors


def read_tensors(path: Path, item_bytes: Mapping[str, int] = FLOAT_BYTES) -> dict[str, SafeTensor]:
    """The tensors of one .safetensors file, mapped, not read."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelFileError(f"cannot read {path}: {error}; check the path, or fetch the file again") from error
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ModelFileError(f"{path} is truncated or no safetensors file ({len(data)} bytes); fetch it again")
    try:
        head = json.loads(data[8:start])
        head.pop("__metadata__", None)
        return {name: _tensor(path, data, start, name, entry, item_bytes) for name, entry in head.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelFileError(f"the head of {path} is damaged ({error}); fetch it again") from error


def _tensor(
    path: Path, data: mmap.mmap, start: int, name: str, entry: Mapping[str, Any], item_bytes: Mapping[str, int]
) -> SafeTensor:
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if kind not in item_bytes:
        mend = "try --runtime hf" if item_bytes is FLOAT_BYTES else "convert it"
        raise UnsupportedError(f"{path}: tensor {name} is {kind}, native reads {', '.join(item_bytes)}; {mend}")
    if end - begin != math.prod(shape) * item_bytes[kind] or begin < 0:
        raise ValueError(f"tensor {name} of shape {list(shape)} has {end - begin} bytes")
    if start + end > len(data):
        raise ModelFileError(
            f"{path} is truncated: tensor {name} ends at byte {start + end}, the file has {len(data)}; fetch it again"
        )
    raw = np.frombuffer(data, dtype=np.uint8, count=end - begin, offset=start + begin)
    return SafeTensor(shape, kind, raw)


@dataclass(slots=True)
class SafeTensor:
    """A tensor of a .safetensors file: `raw` are its mapped bytes, `offset` is added to every value."""

    shape: tuple[int, ...]
    source: str
    raw: NDArray[np.uint8]
    offset: float = 0.0

    def dense(self) -> NDArray[np.float32]:
        """All values, float32, in memory of their own."""
        values = READ_FLOATS[self.source](self.raw).reshape(self.shape)
        return values + np.float32(self.offset) if self.offset else values

    def codes(self) -> Codes | None:
        """None: the file stores floating-point numbers."""
        return None
