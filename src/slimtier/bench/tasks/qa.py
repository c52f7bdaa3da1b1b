"""Questions with short answers (the form of WebQuestions and TriviaQA): exact match and F1 after the usual
normalisation (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of, texts_of

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Qa(MeanOfItems):
    """Rows {"question", "answers": [text, ...]}; any of them is right."""

    name = "qa"
    version = 1
    files = ("qa.jsonl", "webquestions.jsonl", "triviaqa.jsonl")
    metrics = ("exact_match", "f1")

    def item(self, row: Any, number: int) -> Item:
        reference = texts_of(row, "answers") if "answers" in row else None
        return Item(name_of(row, number), self.name, (text_of(row, "question"),), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        words = normalised(answer)
        wanted = [normalised(reference) for reference in item.reference]
        return {
            "exact_match": float(any(words == each for each in wanted)),
            "f1": max(f1(words, each) for each in wanted),
        }


def normalised(text: str) -> list[str]:
    """Its words in lower case, without articles and punctuation."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def f1(words: list[str], wanted: list[str]) -> float:
    """The harmonic mean of the shares of each other's words."""
    common = sum((Counter(words) & Counter(wanted)).values())
    if not words or not wanted:
        return float(words == wanted)
    return 2 * common / (len(words) + len(wanted))
