"""Strict reading of settings."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest

from slimtier.config import read_dataclass, refuse_unknown
from slimtier.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Inner:
    rank: int = 8


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    rate: float = 0.5
    on: bool = False
    kind: Literal["kl", "ce"] = "kl"
    steps: tuple[int, ...] = ()
    limit: int | None = None
    inner: Inner = Inner()


FULL = {"name": "a", "rate": 1, "on": True, "kind": "ce", "steps": [1, 2], "limit": 3, "inner": {"rank": 4}}


def test_every_kind_of_field() -> None:
    read = read_dataclass(Outer, FULL, "f.json")
    assert read == Outer("a", 1.0, True, "ce", (1, 2), 3, Inner(4))
    assert isinstance(read.rate, float)
    assert read_dataclass(Outer, asdict(read), "f.json") == read
    assert read_dataclass(Outer, {"name": "a", "limit": None}, "f.json") == Outer("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rat": 1}, "unknown setting of f.json 'rat': did you mean 'rate'?"),
        ({"inner": {"ranks": 1}}, "unknown setting of f.json: inner 'ranks': did you mean 'rank'?"),
        ({"inner": 3}, "f.json: inner is 3: give names with values"),
        ({"name": None}, "f.json: name is None: give a text"),
        ({"rate": "1"}, "f.json: rate is '1': give a number"),
        ({"rate": True}, "f.json: rate is True: give a number"),
        ({"on": 1}, "f.json: on is 1: give true or false"),
        ({"limit": True}, "f.json: limit is True: give a whole number"),
        ({"limit": 1.5}, "f.json: limit is 1.5: give a whole number"),
        ({"kind": "tv"}, "f.json: kind is 'tv': choose one of kl, ce"),
        ({"steps": "12"}, "f.json: steps is '12': give a list"),
        ({"steps": [1, "2"]}, "f.json: steps[1] is '2': give a whole number"),
    ],
)
def test_what_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_dataclass(Outer, FULL | change, "f.json")


def test_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"f.json lacks name: add it"):
        read_dataclass(Outer, {}, "f.json")


def test_unknown_names() -> None:
    refuse_unknown(["a"], ("a", "b"), "thing")
    with pytest.raises(ConfigError, match=r"unknown thing 'zzz': known: a, b"):
        refuse_unknown(["a", "zzz"], ("b", "a"), "thing")
