"""Prompts of our own writing, which come with the package: a few of each kind that people ask a small model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of, texts_of

OWN_FILE = Path(__file__).with_suffix(".jsonl")


class Own(MeanOfItems):
    """Rows {"id", "category", "prompt"}, and "answers" where there is something to know: one of them must stand in what
    is said."""

    name = "own"
    version = 1
    files = (OWN_FILE.name,)
    metrics = ("answered",)

    def item(self, row: Any, number: int) -> Item:
        reference = texts_of(row, "answers") if "answers" in row else None
        return Item(name_of(row, number), text_of(row, "category"), (text_of(row, "prompt"),), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        said = answer.lower()
        return {"answered": float(any(text.lower() in said for text in item.reference))}
