"""Texts of many paragraphs, and pieces of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from slimtier.errors import InputError
from slimtier.jsonl import read_rows

_LONG = 200  # words: longer paragraphs are divided between sentences
_CONNECTING = "(?: (?:of |the |de |von )?"
_NAME = re.compile(rf"(?<=[a-z,] )[A-Z][\w'’-]+{_CONNECTING}[A-Z][\w'’-]+)+")  # of two words or more, inside a sentence


@dataclass(frozen=True, slots=True)
class Document:
    """`paragraphs` in their order, none empty."""

    source: str
    title: str
    paragraphs: tuple[str, ...]

    def piece(self, words: int, random: Random) -> str:
        """Neighbouring paragraphs with about so many words, from anywhere; all of a shorter text."""
        lengths = [len(paragraph.split()) for paragraph in self.paragraphs]
        left = sum(lengths)
        starts = [0]
        for place, length in enumerate(lengths[:-1], 1):
            left -= length
            if left >= words:
                starts.append(place)
        start = random.choice(starts)
        end, total = start, 0
        while end < len(lengths) and (end == start or total + lengths[end] / 2 < words):
            total += lengths[end]
            end += 1
        return "\n".join(self.paragraphs[start:end])


def read_documents(path: Path) -> Iterator[Document]:
    """Documents of rows {"source", "title", "text"} with blank lines between paragraphs.

    Raises InputError for a file or a row that is not like that.
    """
    for number, row in enumerate(read_rows(path), 1):
        fields = [row.get(name) for name in ("source", "title", "text")] if isinstance(row, dict) else []
        texts = [field for field in fields if isinstance(field, str) and field.strip()]
        if len(texts) < 3:
            raise InputError(f"row {number} of {path} is no text: write the file with tools/training_texts.py")
        source, title, text = texts
        blocks = (re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n", text))
        yield Document(source, title, tuple(part for block in blocks if block for part in divided(block)))


def divided(paragraph: str) -> Iterator[str]:
    """The paragraph in parts of about 200 words at most, each of whole sentences."""
    sentences: list[str] = []
    words = 0
    for sentence in re.split(r"(?<=[.!?;]) ", paragraph):
        length = len(sentence.split())
        if sentences and words + length > _LONG:
            yield " ".join(sentences)
            sentences, words = [], 0
        sentences.append(sentence)
        words += length
    yield " ".join(sentences)


def names_in(text: str) -> list[str]:
    """Names of several words, each once."""
    return list(dict.fromkeys(_NAME.findall(text)))
