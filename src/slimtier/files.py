"""Files that are whole or not there: written beside, brought to the disk, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from slimtier.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file name beside `path` to write to; it takes the name `path` when the block ends, and is gone after an error.
    One writer a path at a time."""
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`. Raises InputError when the disk does not take it."""
    with telling(path), replacing(path) as beside:
        beside.write_bytes(content)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path`, whose directory is made, when the block ends."""
    with telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
            yield file


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file and bring it to the disk. Raises InputError when the disk does not take it."""
    with telling(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """An OSError within becomes an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; free some space and run the command again"
        ) from error
