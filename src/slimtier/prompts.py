"""What a user passes as a prompt, told apart and turned into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from slimtier.errors import InputError

Message = Mapping[str, str]
Prompt = str | Sequence[Message] | Sequence[int]


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    has_chat_template: bool
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...


def split_prompts(given: Any) -> tuple[list[Prompt], bool]:
    """The prompts in what was given, and whether it was a list of prompts.

    A text, a list of messages and a list of ids are one prompt; a list of any of these is many:
    [1, 2] -> ([[1, 2]], False); ["a", [1, 2]] -> (["a", [1, 2]], True).
    """
    if isinstance(given, str):
        return [given], False
    if hasattr(given, "tolist"):  # a numpy array or a tensor of ids
        given = given.tolist()
    if not isinstance(given, Sequence):
        raise InputError(f"a prompt is a text, a list of messages or a list of token ids, not {type(given).__name__}")
    if not given:
        raise InputError("the prompt is empty: give at least one token")
    if all(_is_id(item) for item in given) or all(isinstance(item, Mapping) for item in given):
        return [given], False
    for item in given:
        if _is_id(item) or isinstance(item, Mapping) or not isinstance(item, Sequence):
            raise InputError(
                "a list of prompts mixes whole prompts with token ids or messages: wrap each prompt in a list"
            )
    return list(given), True


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int) -> list[int]:
    """Token ids of one prompt: a text is continued as it stands, messages go through the model's chat template."""
    if not prompt:
        raise InputError("the prompt is empty: give at least one token")
    if all(_is_id(item) for item in prompt):
        ids = [int(cast(int, item)) for item in prompt]
        wrong = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
        if wrong is not None:
            raise InputError(f"token id {wrong} is outside the model's vocabulary of {vocab_size}")
        return ids
    if tokenizer is None:
        raise InputError("this engine has no tokenizer: pass the prompt as token ids")
    if isinstance(prompt, str):
        ids = tokenizer.encode(_text(prompt))
    else:
        ids = tokenizer.encode_chat([_message(item) for item in prompt])
    if not ids:
        raise InputError("the prompt is empty: give at least one token")
    return ids


def _is_id(item: Any) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)


def _message(item: Any) -> Message:
    if (
        not isinstance(item, Mapping)
        or not isinstance(item.get("role"), str)
        or not isinstance(item.get("content"), str)
    ):
        raise InputError(f'a message is {{"role": ..., "content": ...}}, both texts, not {item!r}')
    _text(item["content"])
    return item


def _text(text: str) -> str:
    """The text, if it is one: what came from bytes that are no UTF-8 is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt holds bytes that are not text: give it as UTF-8") from None
    return text
