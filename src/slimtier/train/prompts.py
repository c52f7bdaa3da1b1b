"""Conversations that a target is to answer, read from a JSON Lines file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from slimtier.errors import InputError
from slimtier.jsonl import read_rows

FORMS = ("prompt", "messages", "turns")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the user says, turn by turn; the target answers each turn and sees its own earlier answers."""

    source: str
    turns: tuple[str, ...]
    system: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The system's text, if any, and the turns."""
        return self.turns if self.system is None else (self.system, *self.turns)


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The usable rows in their order; `dropped`: reason -> rows that are not.

    `answers_left_out`: assistant messages in usable rows, which the target's own answers replace.
    """

    conversations: tuple[Conversation, ...]
    dropped: Mapping[str, int]
    answers_left_out: int = 0


class _UnusableError(Exception):
    """Why a row cannot be used."""


def read_prompts(path: Path) -> PromptFile:
    """Read rows {"prompt": text}, {"turns": [text, ...]} or {"messages": [{"role", "content"}, ...]}.

    "source" may be left out; other fields are allowed and not used. A file that ends in .gz is unpacked as it is read.
    Raises InputError: no such file, a line that is not JSON (by its number), no usable row.
    """
    conversations: list[Conversation] = []
    dropped: Counter[str] = Counter()
    answers = 0
    for row in read_rows(path):
        try:
            conversation = _conversation(row, default_source=path.name.partition(".")[0])
        except _UnusableError as reason:
            dropped[str(reason)] += 1
            continue
        conversations.append(conversation)
        if "messages" in row:
            answers += sum(message["role"] == "assistant" for message in row["messages"])
    if not conversations:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in dropped.most_common()) or "it has no rows"
        raise InputError(
            f'{path} has no usable prompt ({reasons}): write rows like {{"prompt": "..."}} or {{"turns": ["...", ...]}}'
        )
    return PromptFile(tuple(conversations), dict(dropped), answers)


def _conversation(row: Any, default_source: str) -> Conversation:
    if not isinstance(row, dict):
        raise _UnusableError("not an object")
    forms = [form for form in FORMS if form in row]
    if len(forms) != 1:
        raise _UnusableError(" and ".join(forms) + " in one row" if forms else "no prompt, messages or turns")
    source = row.get("source", default_source)
    if not isinstance(source, str):
        raise _UnusableError("source is not a text")
    given = row[forms[0]]
    if forms[0] == "messages":
        system, turns = _split_messages(given)
        return Conversation(source, turns, system)
    return Conversation(source, _texts([given] if forms[0] == "prompt" else given))


def _split_messages(messages: Any) -> tuple[str | None, tuple[str, ...]]:
    """The system text, if any, and the user's turns; roles must take turns as chat templates want them."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise _UnusableError("messages is not a list of messages")
    roles = [message.get("role") for message in messages]
    begins = 1 if roles[0] == "system" else 0
    for place, role in enumerate(roles[begins:]):
        if role not in ("user", "assistant"):
            raise _UnusableError("a second or late system message" if role == "system" else "an unknown role")
        if role != ("user", "assistant")[place % 2]:
            raise _UnusableError("user and assistant do not take turns")
    if roles[-1] != "user":
        raise _UnusableError("the last message is not the user's")
    contents = _texts([message.get("content") for message in messages])
    return (contents[0] if begins else None), contents[begins::2]


def _texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise _UnusableError("not a text")
    if not given or not all(text.strip() for text in given):
        raise _UnusableError("an empty text")
    try:
        "".join(given).encode()
    except UnicodeEncodeError:
        raise _UnusableError("half a surrogate pair") from None
    return tuple(cast(list[str], given))
