"""From what the user names to files: an alias, a directory, a .gguf file or a hub id."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slimtier.errors import ModelFileError
from slimtier.models.aliases import ALIASES
from slimtier.models.fetch import fetch

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "merges.txt"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is: `path` is the .gguf file, or the directory of config.json and *.safetensors."""

    name: str  # as the user named it
    kind: Literal["gguf", "safetensors"]
    path: Path


def resolve(name: str) -> ModelFiles:
    """Find (and fetch, for an alias or a hub id) the model `name`. An alias wins over a path of the same name.

    Raises ModelFileError when there is none, or only weights that are not read.
    """
    alias = ALIASES.get(name)
    if alias is not None:
        return ModelFiles(name, "gguf", fetch(alias))
    if not name.strip():
        raise ModelFileError(_unknown(name))
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(name, path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return ModelFiles(name, "gguf", path)
    if path.is_file():
        raise ModelFileError(f"{name} is no .gguf file; name one, or a directory with config.json and *.safetensors")
    if path.suffix.lower() == ".gguf" or name.startswith((".", "/", "~")):
        raise ModelFileError(f"there is no {name}; check the path")
    if _HUB_ID.fullmatch(name):
        return _directory(name, _snapshot(name))
    raise ModelFileError(_unknown(name))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), ALIASES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"no model {name!r}: {hint}name an alias ({', '.join(ALIASES)}), a directory with config.json and "
        "*.safetensors, a .gguf file, or a hub id (org/name)"
    )


def _directory(name: str, path: Path) -> ModelFiles:
    safetensors = list(path.glob("*.safetensors")) + list(path.glob("*.safetensors.index.json"))
    ggufs = sorted(path.glob("*.gguf"))
    if safetensors:
        if not (path / "config.json").is_file():
            raise ModelFileError(f"{name} has *.safetensors but no config.json; copy the model's config.json into it")
        return ModelFiles(name, "safetensors", path)
    if len(ggufs) == 1:
        return ModelFiles(name, "gguf", ggufs[0])
    if ggufs:
        raise ModelFileError(f"{name} has {len(ggufs)} .gguf files; name one, such as {ggufs[0]}")
    if list(path.glob("*.bin")) or list(path.glob("*.bin.index.json")):
        raise ModelFileError(
            f"{name} has its weights only as .bin files (pickles, which are not read); save it again with "
            "safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    raise ModelFileError(f"{name} has no weights: neither *.safetensors nor a .gguf file ({path}); check the name")


def _snapshot(name: str) -> Path:
    """The hub repository `name` in the local hub cache, downloaded as far as it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise ModelFileError(
            f"{name} is gated: accept its terms on https://huggingface.co/{name} and run `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelFileError(
            f"the hub has no model {name} (or it is private: `hf auth login`); check its name"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelFileError(
            f"{name} is not in the local hub cache and the hub cannot be reached; check the network, or name a "
            f"directory or an alias ({', '.join(ALIASES)})"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelFileError(f"cannot fetch {name} from the hub: {cause}; try again") from error
