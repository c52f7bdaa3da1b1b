"""A conversation whose answers were written elsewhere: by a server, or before, as given in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from slimtier.models.tokenizer import Tokenizer
from slimtier.train.answers import Script, loops
from slimtier.train.prompts import Conversation
from slimtier.train.turns import Dialogue, closing_token

Write = Callable[[Sequence[int], bool], list[int]]
"""What is written after the tokens so far; whether it is the user's words. Nothing: the conversation is over."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The tokens of a conversation, and which of them answer; `greedy`: each answer token was the most probable one to
    who wrote it."""

    number: int
    token_ids: tuple[int, ...]
    answer: tuple[bool, ...]
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """A conversation ends with `capacity` tokens, and an answer is begun where `answer` fit; `prompt`: the longest."""

    prompt: int
    answer: int
    capacity: int


def transcribe(number: int, script: Script, write: Write, ends: Sequence[int], room: Room) -> Transcript:
    """The conversation that `script` leads and `write` writes, until one is done or there is no room. One with a prompt
    that is too long is left as it is."""
    tokens = script.opening()
    answer = [False] * len(tokens)
    fits = len(tokens) <= room.prompt
    while fits and len(tokens) + room.answer <= room.capacity:
        asking = script.asking
        written = write(tokens, asking)
        tokens += written
        answer += [not asking] * len(written)
        following = script.after(written) if written and written[-1] in ends else None
        if following is None:
            break
        tokens += following
        answer += [False] * len(following)
    return Transcript(number, tuple(tokens[: room.capacity]), tuple(answer[: room.capacity]))


def recite(
    tokenizer: Tokenizer, conversations: Sequence[Conversation], done: Set[int], room: Room
) -> Iterator[Transcript]:
    """Each conversation once, with the answers it came with; without the numbers in `done`."""
    closing = closing_token(tokenizer)
    for number, conversation in enumerate(conversations):
        if number in done:
            continue
        answers = iter(conversation.answers)

        def write(tokens: Sequence[int], asking: bool, answers: Iterator[str] = answers) -> list[int]:
            said = next(answers, None)
            return [] if said is None else [*tokenizer.encode(said, add_special_tokens=False), closing]

        yield transcribe(number, Dialogue(tokenizer, conversation), write, (closing,), room)


def cut_loop(written: list[int]) -> list[int]:
    """`written` up to where its end only repeats itself."""
    return next((written[:end] for end in range(1, len(written)) if loops(written[:end])), written)
