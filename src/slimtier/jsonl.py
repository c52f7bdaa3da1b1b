"""JSON Lines files, read strictly: a line that is none is named by its number."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slimtier.errors import InputError


def read_rows(path: Path) -> Iterator[Any]:
    """The JSON value of each line that is not blank. A file that ends in .gz is unpacked as it is read.

    Raises InputError, with the line's number where there is one.
    """
    for _, row in numbered_rows(path):
        yield row


def numbered_rows(path: Path, bad: Callable[[str], None] | None = None) -> Iterator[tuple[int, Any]]:
    """The number, from 1, and the JSON value of each line that is not blank; `bad` is told of a line that is not JSON,
    which is then left out.

    Raises InputError: the file cannot be read, or a line is not JSON and there is no `bad`.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:  # both the bytes and the JSON
                    words = f"line {number} of {path} is not JSON ({error}): write one JSON object a line, in UTF-8"
                    if bad is None:
                        raise InputError(words) from error
                    bad(words)
                    continue
                yield number, row
    except (OSError, EOFError, zlib.error) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {cause}; give a JSON Lines file") from error
