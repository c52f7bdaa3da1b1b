"""Conversations from JSON Lines: the three forms, and a reason for every row that is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.errors import InputError
from slimtier.train.prompts import Conversation, PromptFile, read_prompts


def message(role: str, content: Any = "hi") -> dict[str, Any]:
    return {"role": role, "content": content}


def read(tmp_path: Path, *rows: Any, given: bool = False) -> PromptFile:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_prompts(path, given)


def test_the_three_forms(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        {"prompt": "one", "source": "a"},
        {"turns": ["one", "two"], "id": 7},
        {"messages": [message("system", "be kind"), message("user", "one")]},
        {"messages": [message("user", "one"), message("assistant", "1"), message("user", "two")]},
    )
    assert file.conversations == (
        Conversation("a", ("one",)),
        Conversation("mine", ("one", "two")),
        Conversation("mine", ("one",), "be kind"),
        Conversation("mine", ("one", "two")),
    )
    assert [one.texts for one in file.conversations[1:3]] == [("one", "two"), ("be kind", "one")]
    assert file.dropped == {}
    assert file.answers_left_out == 1


def test_answers_that_are_given(tmp_path: Path) -> None:
    spoken = [message("system", "be kind"), message("user", "one"), message("assistant", "1")]
    file = read(
        tmp_path,
        {"messages": spoken},
        {"messages": [*spoken, message("user", "two"), message("assistant", "2")]},
        {"messages": spoken[:2]},
        {"prompt": "one"},
        given=True,
    )
    assert file.conversations == (
        Conversation("mine", ("one",), "be kind", ("1",)),
        Conversation("mine", ("one", "two"), "be kind", ("1", "2")),
    )
    assert file.conversations[1].texts == ("be kind", "one", "two", "1", "2")
    assert file.dropped == {"the last message is not the assistant's": 1, "no messages, so no answer": 1}
    assert file.answers_left_out == 0
    with pytest.raises(InputError, match=r'write rows like \{"messages"'):
        read(tmp_path, {"prompt": "one"}, given=True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["a"], "not an object"),
        ({"text": "a"}, "no prompt, messages or turns"),
        ({"prompt": "a", "turns": ["a"]}, "prompt and turns in one row"),
        ({"prompt": "a", "source": 1}, "source is not a text"),
        ({"prompt": 3}, "not a text"),
        ({"prompt": None}, "not a text"),
        ({"prompt": " \n"}, "an empty text"),
        ({"prompt": "\ud800"}, "half a surrogate pair"),
        ({"turns": "abc"}, "not a text"),
        ({"turns": []}, "an empty text"),
        ({"turns": ["a", ""]}, "an empty text"),
        ({"messages": []}, "messages is not a list of messages"),
        ({"messages": ["a"]}, "messages is not a list of messages"),
        ({"messages": [message("system")]}, "the last message is not the user's"),
        ({"messages": [message("user"), message("assistant")]}, "the last message is not the user's"),
        ({"messages": [message("user"), message("user")]}, "user and assistant do not take turns"),
        ({"messages": [message("assistant"), message("user")]}, "user and assistant do not take turns"),
        ({"messages": [message("user"), message("system")]}, "a second or late system message"),
        ({"messages": [message("user"), message("tool")]}, "an unknown role"),
        ({"messages": [{"content": "a"}]}, "an unknown role"),
        ({"messages": [message("user", None)]}, "not a text"),
    ],
)
def test_what_cannot_be_used_is_counted_by_its_reason(tmp_path: Path, row: Any, reason: str) -> None:
    file = read(tmp_path, row, {"prompt": "good"}, row)
    assert file.dropped == {reason: 2}
    assert [one.turns for one in file.conversations] == [("good",)]


def test_a_file_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.jsonl has no usable prompt \(2 × an empty text, 1 × not an object\)"):
        read(tmp_path, 5, {"prompt": ""}, {"prompt": ""})
    with pytest.raises(InputError, match="it has no rows"):
        read(tmp_path)


@pytest.mark.parametrize("line", [b'{"prompt": ', b"plain text", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_a_line_that_is_not_json_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=r"line 3 of .*broken\.jsonl is not JSON"):
        read_prompts(path)


def test_a_compressed_file_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "packed.jsonl.gz"
    path.write_bytes(gzip.compress('\ufeff{"prompt": "Grüße"}\r\n\r\n'.encode()))
    assert read_prompts(path).conversations == (Conversation("packed", ("Grüße",)),)


@pytest.mark.parametrize("content", [None, b"{}", gzip.compress(b'{"prompt": "a"}' * 50)[:30]])
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "packed.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read .*packed"):
        read_prompts(path)
