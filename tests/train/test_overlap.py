"""Overlap with held-out text, against a search in joined words."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from slimtier.errors import InputError
from slimtier.train.overlap import RUN, HeldOut, read_held_out, split_words, without
from slimtier.train.prompts import Conversation, PromptFile

LETTERS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"]


def overlaps_naively(held_out: list[str], text: str, run: int) -> bool:
    """The definition: a run of words of the text stands, as words, in a held-out text, or all of it does."""
    words = split_words(text)
    runs = [f" {' '.join(words[begin : begin + run])} " for begin in range(len(words) - run + 1)]
    others = [f" {' '.join(split_words(other))} " for other in held_out]
    return any(part in other for part in runs for other in others) or (bool(words) and f" {' '.join(words)} " in others)


@pytest.mark.parametrize("run", [1, 2, 3, 5])
def test_it_agrees_with_the_definition(run: int) -> None:
    draw = random.Random(run)
    texts = [" ".join(draw.choices(LETTERS[:4], k=draw.randrange(9))) for _ in range(40)]
    for _ in range(60):
        held_out = draw.sample(texts, 2)
        fast = HeldOut(held_out, run)
        for text in draw.sample(texts, 20):
            assert fast.overlaps(text) == overlaps_naively(held_out, text, run), (held_out, text)


def test_thirteen_words_are_too_many_and_twelve_are_not() -> None:
    held_out = HeldOut([" ".join(LETTERS)])
    assert held_out.overlaps("Well: " + " ".join(LETTERS[1 : RUN + 1]) + " and more")
    assert not held_out.overlaps("Well: " + " ".join(LETTERS[1:RUN]) + " and more")
    assert held_out.any_overlaps(["x", " ".join(LETTERS[:RUN])])
    assert not held_out.any_overlaps(["x", " ".join(LETTERS[: RUN - 1])])


def test_case_punctuation_and_space_do_not_count() -> None:
    held_out = HeldOut(["Who played Anna, in 'Once upon a time'?"])
    assert held_out.overlaps("who played  anna in once\nupon a time")
    assert not held_out.overlaps("who played anna in once upon a")
    assert not held_out.overlaps("someone asked: who played anna in once upon a time")


def test_what_overlaps_is_counted_with_the_dropped() -> None:
    overlapping = [
        Conversation("s", ("which colour has the sky",)),
        Conversation("s", ("hello", "Which colour has the sky?")),
        Conversation("s", ("hello",), "Say which colour has the sky."),
    ]
    good = Conversation("s", ("a colour",))
    file = PromptFile((*overlapping, good), {"an empty text": 1}, answers_left_out=2)
    kept = without(file, HeldOut(["which colour has the sky"], run=3))
    assert kept == PromptFile((good,), {"an empty text": 1, "overlap with held-out data": 3}, answers_left_out=2)
    assert without(file, HeldOut(["something else"])) == file
    with pytest.raises(InputError, match="every prompt overlaps"):
        without(PromptFile(tuple(overlapping), {}), HeldOut(["which colour has the sky"], run=3))


def test_a_text_without_words_holds_nothing_out() -> None:
    assert not HeldOut(["", " \n", "?!"]).any_overlaps(["", "?", "words"])


def test_every_text_of_every_file_is_held_out(tmp_path: Path) -> None:
    rows = [{"turns": ["first one here"], "reference": {"deep": [["second one here"]]}, "id": 3, "none": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'"third one here"\n'))
    (tmp_path / "c.txt").write_text("fourth one here")
    held_out = read_held_out(tmp_path, run=3)
    assert [held_out.overlaps(f"the {word} one here") for word in ("first", "second", "third", "fourth")] == [
        True,
        True,
        True,
        False,
    ]
    assert not held_out.overlaps("turns")


def test_a_directory_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no \.jsonl"):
        read_held_out(tmp_path)
    (tmp_path / "a.jsonl").write_text("no json\n")
    with pytest.raises(InputError, match=r"line 1 of .*a\.jsonl"):
        read_held_out(tmp_path)
