"""Summaries of articles: ROUGE (Lin 2004), as rouge-score computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of
from slimtier.errors import MissingDependencyError

_ASK = "Summarize: "


class Summarization(MeanOfItems):
    """Rows {"article", "summary"} (or "document", "reference"); the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L."""

    name = "summarization"
    version = 1
    files = ("summarization.jsonl", "cnn_dailymail.jsonl")
    metrics = ("rouge1", "rouge2", "rougeL")

    def item(self, row: Any, number: int) -> Item:
        known = any(key in row for key in ("summary", "reference"))
        reference = text_of(row, "summary", "reference") if known else None
        return Item(name_of(row, number), self.name, (_ASK + text_of(row, "article", "document"),), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise MissingDependencyError("ROUGE needs rouge-score: pip install 'slimtier[scores]'") from error
        found = RougeScorer(list(self.metrics), use_stemmer=True).score(item.reference, answer)
        return {metric: float(found[metric].fmeasure) for metric in self.metrics}
