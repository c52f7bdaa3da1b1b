"""Whether two models' token ids mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimtier.drafters.vocabulary import check_vocabulary
from slimtier.errors import VocabularyError
from tests.stubs import StubTarget

WORDS = {0: "<s>", 1: "the", 2: "sky", 3: "blue"}
TARGET = replace(StubTarget(4).info, name="big")
DRAFT = replace(TARGET, name="small")


def test_the_same_tokens_pass_whatever_the_padding() -> None:
    check_vocabulary(DRAFT, TARGET, WORDS, dict(WORDS))
    check_vocabulary(replace(DRAFT, vocab_size=64), TARGET, WORDS, WORDS)
    check_vocabulary(DRAFT, replace(TARGET, vocab_size=64), WORDS, {**WORDS, 4: "<added>"})
    check_vocabulary(replace(DRAFT, vocab_size=5), TARGET, {**WORDS, 4: "<added>"}, WORDS)


def test_a_token_that_means_something_else_is_named() -> None:
    with pytest.raises(VocabularyError, match=r"token 2 is 'sea' for small and 'sky' for big"):
        check_vocabulary(DRAFT, TARGET, {**WORDS, 2: "sea"}, WORDS)
    with pytest.raises(VocabularyError, match="no token id in common"):
        check_vocabulary(DRAFT, TARGET, {7: "x"}, WORDS)


def test_without_tokenizers_the_sizes_must_agree() -> None:
    check_vocabulary(DRAFT, TARGET)
    check_vocabulary(DRAFT, TARGET, WORDS, None)
    with pytest.raises(VocabularyError, match="small has 64 tokens and big 4"):
        check_vocabulary(replace(DRAFT, vocab_size=64), TARGET)
