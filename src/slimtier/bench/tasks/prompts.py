"""Any JSON Lines file of prompts."""

from __future__ import annotations

from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of, texts_of


class Prompts(MeanOfItems):
    """Rows {"prompt": text} or {"turns": [text, ...]}, with a "category" if there are several."""

    name = "prompts"
    version = 1
    files = ("prompts.jsonl",)

    def item(self, row: Any, number: int) -> Item:
        turns = texts_of(row, "turns") if "turns" in row else (text_of(row, "prompt"),)
        return Item(name_of(row, number), text_of(row, "category") if "category" in row else self.name, turns)
