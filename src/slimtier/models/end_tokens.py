"""Which tokens end an answer, as a model's files declare them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slimtier.errors import ModelFileError

_SPELLINGS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


def spelt_end_ids(metadata: Mapping[str, Any], token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """A GGUF file's eos, eot and eom ids, and those of the tokens that are spelt as an end of turn."""
    declared = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    found = [*declared, *(token_to_id(spelling) for spelling in _SPELLINGS)]
    return tuple(dict.fromkeys(int(token_id) for token_id in found if token_id is not None))


def directory_end_ids(directory: Path) -> tuple[int, ...]:
    """generation_config.json's eos_token_id (one or several), else config.json's."""
    for name in ("generation_config.json", "config.json"):
        ids = read_json(directory / name).get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    return ()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} when there is no such file; ModelFileError when it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path} ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object; fetch it again")
    return value
