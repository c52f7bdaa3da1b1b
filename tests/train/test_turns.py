"""What stands around the target's words, and which words are whose."""

from __future__ import annotations

from typing import Any

import pytest

from slimtier.errors import InputError
from slimtier.train.prompts import Conversation
from slimtier.train.turns import Dialogue
from tests.train.dialogues import CHATML, EOS, REWRITING, tokenizer


def written(text: str) -> list[int]:
    return [*tokenizer().encode(text), EOS]


def play(dialogue: Dialogue, words: list[str]) -> tuple[list[tuple[bool, list[int]]], bool]:
    """The pieces of the conversation, (written by the target, ids), and whether it is over."""
    pieces = [(False, dialogue.opening())]
    for text in words:
        ids = written(text)
        pieces.append((True, ids))
        following = dialogue.after(ids)
        if following is None:
            return pieces, True
        pieces.append((False, following))
    return pieces, False


def whole(messages: list[dict[str, Any]]) -> list[int]:
    return tokenizer().encode(tokenizer().render_chat(messages, add_generation_prompt=False), add_special_tokens=False)


def spoken(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_three_turns_are_the_templates_own_text_with_the_answers_where_they_stand() -> None:
    dialogue = Dialogue(tokenizer(), Conversation("s", ("hear me", "and then", "the end")))
    pieces, over = play(dialogue, ["one", "two", "three"])
    assert over
    ids = [token for _, piece in pieces for token in piece]
    expected = whole(spoken("hear me", "one", "and then", "two", "the end", "three"))
    assert ids == expected[: len(ids)]
    assert [tokenizer().decode(piece) for mine, piece in pieces if mine] == ["one", "two", "three"]
    assert all("one" not in tokenizer().decode(piece) for mine, piece in pieces if not mine)


def test_a_system_text_stands_first() -> None:
    dialogue = Dialogue(tokenizer(), Conversation("s", ("hear",), "be terse"))
    assert tokenizer().decode(dialogue.opening(), skip_special_tokens=False) == (
        "<bos>system be terse<eos> <bos>user hear<eos> <bos>assistant "
    )


def test_drawn_turns_are_written_for_the_user_and_then_answered() -> None:
    dialogue = Dialogue(tokenizer(), Conversation("drawn", ()), drawn=2)
    assert dialogue.asking
    assert tokenizer().decode(dialogue.opening(), skip_special_tokens=False) == "<bos>user "
    speakers = []
    ids = list(dialogue.opening())
    for text in ("ask", "say", "more", "so"):
        speakers.append(dialogue.asking)
        ids += written(text)
        ids += dialogue.after(written(text)) or []
    assert speakers == [True, False, True, False]
    assert ids == whole(spoken("ask", "say", "more", "so"))[: len(ids)]


def test_an_empty_turn_ends_the_conversation() -> None:
    dialogue = Dialogue(tokenizer(), Conversation("s", ("hear", "and")))
    assert dialogue.after([EOS]) is None


def test_a_template_that_rewrites_earlier_answers_is_refused() -> None:
    dialogue = Dialogue(tokenizer(REWRITING), Conversation("s", ("hear", "and")))
    dialogue.opening()
    with pytest.raises(InputError, match="rewrites earlier turns"):
        dialogue.after(written("think a say"))


def test_a_base_model_continues_the_text_and_stops() -> None:
    dialogue = Dialogue(tokenizer(None), Conversation("s", ("once upon",)), drawn=3)
    assert dialogue.opening() == tokenizer().encode("once upon")
    assert dialogue.after(written("a time")) is None


def test_the_end_of_turn_is_not_doubled_where_the_answer_was_cut() -> None:
    dialogue = Dialogue(tokenizer(CHATML), Conversation("s", ("hear", "and")))
    cut = dialogue.after(tokenizer().encode("one"))
    assert cut is not None
    assert cut[0] == EOS
