"""Text that training must not see: whatever shares a run of words with held-out data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slimtier.errors import InputError
from slimtier.jsonl import read_rows
from slimtier.train.prompts import PromptFile

RUN = 13  # words in a row, as in GPT-3's check for contamination (Brown et al. 2020, appendix C)

_WORD = re.compile(r"[^\W_]+")


class HeldOut:
    """Runs of words of held-out texts, kept as hashes.

    A text overlaps if it shares `run` words in a row with one of them, or if it is one of them as a whole. Case,
    punctuation and space do not count.
    """

    def __init__(self, texts: Iterable[str], run: int = RUN) -> None:
        self.run = run
        self._runs: set[int] = set()
        self._whole: set[int] = set()  # short questions have no run of their own
        for text in texts:
            words = split_words(text)
            self._runs.update(_hashes(words, run))
            if words:
                self._whole.add(hash(tuple(words)))

    def overlaps(self, text: str) -> bool:
        """Whether the text shares `run` words in a row, or everything, with a held-out text."""
        words = split_words(text)
        if hash(tuple(words)) in self._whole:
            return True
        return any(code in self._runs for code in _hashes(words, self.run))

    def any_overlaps(self, texts: Iterable[str]) -> bool:
        return any(self.overlaps(text) for text in texts)


def without(prompts: PromptFile, held_out: HeldOut) -> PromptFile:
    """The prompts that do not overlap; how many do is counted with the dropped. InputError when none is left."""
    kept = tuple(one for one in prompts.conversations if not held_out.any_overlaps(one.texts))
    if not kept:
        raise InputError("every prompt overlaps with the held-out data: give others")
    count = len(prompts.conversations) - len(kept)
    dropped = {**prompts.dropped, "overlap with held-out data": count} if count else prompts.dropped
    return replace(prompts, conversations=kept, dropped=dropped)


def read_held_out(directory: Path, run: int = RUN) -> HeldOut:
    """Every text in the .jsonl and .jsonl.gz files of a directory, in whatever field and depth.

    Raises InputError: no such file there, or one that is not JSON Lines.
    """
    paths = sorted([*directory.glob("*.jsonl"), *directory.glob("*.jsonl.gz")])
    if not paths:
        raise InputError(f"{directory} has no .jsonl or .jsonl.gz file: name the directory of the evaluation data")
    return HeldOut((text for path in paths for row in read_rows(path) for text in _strings(row)), run)


def split_words(text: str) -> list[str]:
    """Lower-cased words; every sign that is neither letter nor digit divides them."""
    return _WORD.findall(text.casefold())


def _hashes(words: Sequence[str], run: int) -> Iterator[int]:
    return (hash(tuple(words[begin : begin + run])) for begin in range(len(words) - run + 1))


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
