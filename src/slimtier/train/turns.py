"""A conversation as the target writes it: the tokens around what it writes, derived from the model's chat template.

The target answers each of the user's turns. After the given turns it may also speak for the user (as in Magpie, Xu et
al. 2024): such turns cost no reading of prompts, and the answers to them are as much the target's as any.
"""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.errors import InputError
from slimtier.models.tokenizer import Tokenizer
from slimtier.train.prompts import Conversation

# They stand in a text for what is written while the words around it are sought; no real conversation holds them.
_WRITTEN, _NEXT = "\u241fwritten\u241f", "\u241fnext\u241f"


class Dialogue:
    """The state of one conversation; `drawn`: how many of the user's turns the target makes up after the given ones
    (a base model, which has no turns, continues the first text). Words alternate: user, answer, user, ..."""

    def __init__(self, tokenizer: Tokenizer, conversation: Conversation, drawn: int = 0) -> None:
        self._tokenizer, self._given = tokenizer, conversation.turns
        self._turns = len(conversation.turns) + drawn
        self._system = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
        self._words: list[str] = list(conversation.turns[:1])

    @property
    def asking(self) -> bool:
        """Whether the target now writes the user's words, not an answer."""
        return len(self._words) % 2 == 0

    def opening(self) -> list[int]:
        """The tokens before the first thing that the target writes."""
        if not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(self._given[0])
        return self._encode(self._before(self._words))

    def after(self, written: Sequence[int]) -> list[int] | None:
        """The tokens between what the target wrote, its end of turn included, and what it writes next; None: the
        conversation is over. Raises InputError when the template changes what stands before, as some do with an
        earlier answer's reasoning."""
        said = self._tokenizer.decode(written)
        turn = len(self._words) // 2 + 1  # the user's next
        if not self._tokenizer.has_chat_template or not said.strip() or (not self.asking and turn >= self._turns):
            return None
        given = [] if self.asking else list(self._given[turn : turn + 1])
        stood = self._before(self._words) + _WRITTEN
        text = self._before([*self._words, _WRITTEN, *given])
        if not text.startswith(stood):
            raise InputError("the chat template rewrites earlier turns: give conversations of one turn")
        self._words += [said, *given]
        ids = self._encode(text[len(stood) :])
        return ids[1:] if ids[:1] == list(written[-1:]) else ids

    def _before(self, words: Sequence[str]) -> str:
        """The text up to where the next words are written."""
        answering = len(words) % 2 == 1
        roles = ("user", "assistant")
        spoken = words if answering else [*words, _NEXT]
        messages = self._system + [{"role": roles[i % 2], "content": text} for i, text in enumerate(spoken)]
        return self._tokenizer.render_chat(messages, add_generation_prompt=answering).partition(_NEXT)[0]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def closing_token(tokenizer: Tokenizer) -> int:
    """The token that ends an answer: what the chat template has after one, or the model's first end token."""
    if tokenizer.has_chat_template:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _WRITTEN}]
        tail = tokenizer.render_chat(messages, add_generation_prompt=False).partition(_WRITTEN)[2]
        ids = tokenizer.encode(tail, add_special_tokens=False)
        if ids and ids[0] in tokenizer.eos_token_ids:
            return ids[0]
    if not tokenizer.eos_token_ids:
        raise InputError("this model's files name no token that ends an answer: given answers cannot be closed")
    return tokenizer.eos_token_ids[0]
