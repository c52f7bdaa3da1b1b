"""Spec-Bench (Xia et al. 2024): 480 prompts in six categories; they are there to be answered fast, not to be scored."""

from __future__ import annotations

from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of, texts_of

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


class SpecBench(MeanOfItems):
    """Rows {"question_id", "category", "turns"}. The eight categories of MT-Bench count as one of the six."""

    name = "spec_bench"
    version = 1
    files = ("spec_bench.jsonl", "question.jsonl")

    def item(self, row: Any, number: int) -> Item:
        category = text_of(row, "category")
        return Item(name_of(row, number), "mt_bench" if category in MT_BENCH else category, texts_of(row, "turns"))
