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
MEND = '{"prompt": "..."} or {"turns": ["...", ...]}'


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the user says, turn by turn; the target answers each turn and sees its own earlier answers. `answers`: those
    that it came with, one for each turn, where they are to be kept; else none."""

    source: str
    turns: tuple[str, ...]
    system: str | None = None
    answers: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is said: the system's text, the turns, the answers."""
        return (*(() if self.system is None else (self.system,)), *self.turns, *self.answers)


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


def read_prompts(path: Path, given: bool = False) -> PromptFile:
    """Read rows {"prompt": text}, {"turns": [text, ...]} or {"messages": [{"role", "content"}, ...]}.

    `given`: with their answers; then rows of messages that end with the assistant's, and no others, are usable.

    "source" may be left out; other fields are allowed and not used. A file that ends in .gz is unpacked as it is read.
    Raises InputError: no such file, a line that is not JSON (by its number), no usable row.
    """
    conversations: list[Conversation] = []
    dropped: Counter[str] = Counter()
    answers = 0
    for row in read_rows(path):
        try:
            conversation = _conversation(row, path.name.partition(".")[0], given)
        except _UnusableError as reason:
            dropped[str(reason)] += 1
            continue
        conversations.append(conversation)
        if "messages" in row and not given:
            answers += sum(message["role"] == "assistant" for message in row["messages"])
    if not conversations:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in dropped.most_common()) or "it has no rows"
        mend = '{"messages": [..., {"role": "assistant", "content": "..."}]}' if given else MEND
        raise InputError(f"{path} has no usable prompt ({reasons}): write rows like {mend}")
    return PromptFile(tuple(conversations), dict(dropped), answers)


def _conversation(row: Any, default_source: str, with_answers: bool) -> Conversation:
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
        return Conversation(source, *_split_messages(given, with_answers))
    if with_answers:
        raise _UnusableError("no messages, so no answer")
    return Conversation(source, _texts([given] if forms[0] == "prompt" else given))


def _split_messages(messages: Any, answered: bool) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """The user's turns, the system text, if any, and, if the last message answers, the answers; roles must take turns
    as chat templates want them."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise _UnusableError("messages is not a list of messages")
    roles = [message.get("role") for message in messages]
    begins = 1 if roles[0] == "system" else 0
    for place, role in enumerate(roles[begins:]):
        if role not in ("user", "assistant"):
            raise _UnusableError("a second or late system message" if role == "system" else "an unknown role")
        if role != ("user", "assistant")[place % 2]:
            raise _UnusableError("user and assistant do not take turns")
    if roles[-1] != ("assistant" if answered else "user"):
        raise _UnusableError(f"the last message is not the {'assistant' if answered else 'user'}'s")
    contents = _texts([message.get("content") for message in messages])
    answers = contents[begins + 1 :: 2] if answered else ()
    return contents[begins::2], (contents[0] if begins else None), answers


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
