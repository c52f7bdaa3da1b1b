"""Settings read strictly: a mapping, as a JSON file gives it, becomes a frozen dataclass; nothing is ignored."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from slimtier.errors import ConfigError

T = TypeVar("T")


def refuse_unknown(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """ConfigError for the first name that is not known; it names the nearest that is."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"unknown {what} {name!r}: {hint}")


def json_or_text(text: str) -> Any:
    """A value from a command line: JSON if it can be read as such (.5 and 5. are numbers too), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)", text) else text


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says. Raises ConfigError for one that cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the config {path}: {why}; give a TOML file") from error


def read_dataclass(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A `kind` from `values`; `where` is named in errors (a file, and the block in it).

    Fields are bool, int, float (a whole number will do), str, Literal, tuple[X, ...], X | None, or such a dataclass
    again. Raises ConfigError for an unknown name, one that is missing, and a value of another type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}: give names with values")
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    refuse_unknown(values, list(hints), f"setting of {where}")
    read = {}
    for field in fields(kind):
        if field.name in values:
            read[field.name] = _value(hints[field.name], values[field.name], f"{where}: {field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where} lacks {field.name}: add it")
    return kind(**read)


def _value(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, an annotation."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        (kind,) = [part for part in parts if part is not type(None)]
        return _value(kind, value, where)
    if origin is Literal:
        if not any(value == part and type(value) is type(part) for part in parts):
            raise ConfigError(f"{where} is {value!r}: choose one of {', '.join(map(str, parts))}")
        return value
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{where} is {value!r}: give a list")
        return tuple(_value(parts[0], one, f"{where}[{index}]") for index, one in enumerate(value))
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return read_dataclass(kind, value, where)
    return _plain(kind, value, where)


def _plain(kind: Any, value: Any, where: str) -> Any:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where} is {value!r}: give {words[kind]}")
    return value
