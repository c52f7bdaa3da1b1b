"""Texts from templates: sections of lines with slots that name other sections.

    # animal;
    cats; dogs; 3* owls
    # city
    Paris | France
    Rome | Italy
    # question
    Why is {city1} the capital of {city1.1}, and not {city2}?
    {^animal} live {2..20} years in {city}, don't they?

A slot is replaced by a random line of its section, expanded in turn. With a digit it is the same line wherever it
stands in one template, and another than that of other digits; `.1` is the second field of that line; `{^city}` begins
with a capital; `{2..20}` is a number, `{100..900/50}` one in steps. `3*` makes a line three times as likely. A section
whose name ends in a semicolon has several entries a line. `\\n` breaks a line, // begins a comment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

LISTS = Path(__file__).parent / "lists"

_SLOT = re.compile(r"\{(\^?)([a-z]+(?:_[a-z]+)*)(\d?)(?:\.(\d))?\}")
_NUMBER = re.compile(r"\{(\d+)\.\.(\d+)(?:/(\d+))?\}")
_WEIGHT = re.compile(r"(?:(\d)\* )?(.*)")
_FIELD = " | "
_TRIES = 50


class Grammar:
    """Sections by name, each a list of lines.

    Raises ValueError for a slot that names no section.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.sections: dict[str, list[str]] = defaultdict(list)
        for text in texts:
            for name, line in entries(text):
                times, template = _WEIGHT.fullmatch(line).groups()  # type: ignore[union-attr]  # it matches any line
                self.sections[name] += [template.replace("\\n", "\n")] * int(times or 1)
        for line in [line for lines in self.sections.values() for line in lines]:
            for name in slots(line):
                if name not in self.sections:
                    raise ValueError(f"no section {name!r}, which this template names: {line}")

    def expand(self, section: str, random: Random) -> str:
        """A random line of the section with its slots filled."""
        return self.fill(random.choice(self.sections[section]), random)

    def fill(self, template: str, random: Random) -> str:
        """The template with its slots filled."""
        bound: dict[tuple[str, str], str] = {}

        def replacement(match: re.Match[str]) -> str:
            capital, name, digit, field = match.groups()
            line = bound.get((name, digit)) if digit else None
            if line is None:
                line = self._other(name, [value for (other, _), value in bound.items() if other == name], random)
                if digit:
                    bound[name, digit] = line
            text = line.split(_FIELD)[int(field or 0)]
            return text[:1].upper() + text[1:] if capital else text

        return _NUMBER.sub(lambda match: _number(match, random), _SLOT.sub(replacement, template))

    def _other(self, section: str, taken: list[str], random: Random) -> str:
        for _ in range(_TRIES):
            line = self.expand(section, random)
            if line not in taken:
                return line
        raise ValueError(f"section {section!r} has too few lines for a template that names it several times")


def read_grammar() -> Grammar:
    """The lists of this package as one grammar."""
    return Grammar(path.read_text(encoding="utf-8") for path in sorted(LISTS.glob("*.txt")))


def slots(template: str) -> list[str]:
    """The sections that a template names."""
    return [name for _, name, _, _ in _SLOT.findall(template)]


def entries(text: str) -> Iterator[tuple[str, str]]:
    """(section, line) pairs as they are written."""
    name, joined = "", False
    for line in text.splitlines():
        if line.startswith("# "):
            joined = line.endswith(";")
            name = line[2:].rstrip(";")
        elif line.strip() and not line.startswith("//"):
            for entry in line.split("; ") if joined else [line]:
                yield name, entry.strip()


def _number(match: re.Match[str], random: Random) -> str:
    low, high, step = (int(group or 1) for group in match.groups())
    return str(random.randrange(low, high + 1, step))
