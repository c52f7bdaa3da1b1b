"""MT-Bench (Zheng et al. 2023): 80 conversations of two turns. Its judge is a large model; nothing is scored here."""

from __future__ import annotations

from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of, texts_of


class MtBench(MeanOfItems):
    """Rows {"question_id", "category", "turns"}."""

    name = "mt_bench"
    version = 1
    files = ("mt_bench.jsonl",)

    def item(self, row: Any, number: int) -> Item:
        return Item(name_of(row, number), text_of(row, "category"), texts_of(row, "turns"))
