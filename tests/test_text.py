"""Incremental text: whole characters, stop strings, and nothing released that is taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimtier.text import TextStream
from tests.byte_tokenizer import END, ByteTokenizer


class Pieces:
    """A tokenizer whose tokens are texts; like a sentencepiece one it drops a space at the start of what it decodes."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.pieces[token] for token in ids).removeprefix(" ")


def released(stream: TextStream, ids: Sequence[int]) -> list[str]:
    """What each token releases, and the end."""
    pieces = []
    for token in ids:
        stopped = stream.push(token)
        pieces.append(stream.take())
        if stopped:
            break
    stream.finish()
    return [*pieces, stream.take()]


def test_a_character_is_released_when_it_is_whole() -> None:
    pieces = released(TextStream(ByteTokenizer()), list("a🙂é".encode()))
    assert pieces == ["a", "", "", "", "🙂", "", "é", ""]


def test_an_unfinished_character_shows_at_the_end() -> None:
    stream = TextStream(ByteTokenizer())
    assert released(stream, [97, 0xF0, 0x9F]) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]
    assert stream.text == "a\N{REPLACEMENT CHARACTER}"


def test_bytes_that_are_no_character_do_not_hold_back_what_follows() -> None:
    assert "".join(released(TextStream(ByteTokenizer()), [0xFF, 97, 98])) == "\N{REPLACEMENT CHARACTER}ab"


def test_spaces_between_tokens_survive() -> None:
    pieces = released(TextStream(Pieces(" the", " cat", "s")), [0, 1, 2, 1])
    assert pieces == ["the", " cat", "s", " cat", ""]


def test_special_tokens_have_no_text() -> None:
    assert "".join(released(TextStream(ByteTokenizer()), [97, END, END, 98])) == "ab"


@pytest.mark.parametrize(
    ("stop", "pieces", "want"),
    [
        (["END"], ["a E", "NDx"], ["a ", "", ""]),
        (["END"], ["a E", "N", "xt"], ["a ", "", "ENxt", ""]),
        (["END"], ["a E", "N"], ["a ", "", "EN"]),
        (["b"], ["b"], ["", ""]),
        (["lo w", "o"], ["hel", "lo wor"], ["he", "l", ""]),  # "o" starts later than "lo w"
        (["cd", "abc"], ["ab", "cd"], ["", "", ""]),  # both in one token: the earliest start wins
        (["aab"], ["aa", "ab"], ["", "a", ""]),
        (["é"], ["caf", "é!"], ["caf", "", ""]),
    ],
)
def test_stop_strings(stop: list[str], pieces: list[str], want: list[str]) -> None:
    stream = TextStream(Pieces(*pieces), stop)
    assert released(stream, range(len(pieces))) == want
    assert stream.text == "".join(want)


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert released(TextStream(None), [1, 2]) == ["", "", ""]


@given(st.text(max_size=30), st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=2))
def test_pieces_join_to_the_text_that_decoding_at_once_gives(text: str, stop: list[str]) -> None:
    ids = list(text.encode(errors="replace"))
    stream = TextStream(ByteTokenizer(), stop)
    pieces = released(stream, ids)
    whole = bytes(ids).decode()
    starts = [whole.find(one) for one in stop if one in whole]
    assert "".join(pieces) == stream.text
    if not starts:
        assert stream.text == whole
    else:
        assert whole.startswith(stream.text)
        assert not any(one in stream.text for one in stop)


@given(st.binary(max_size=24))
def test_any_bytes_give_the_text_that_decoding_at_once_gives(data: bytes) -> None:
    stream = TextStream(ByteTokenizer())
    assert "".join(released(stream, list(data))) == data.decode(errors="replace")
