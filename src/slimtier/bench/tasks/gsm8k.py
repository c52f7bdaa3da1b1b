"""GSM8K (Cobbe et al. 2021): grade-school sums; the last number of an answer must be the reference's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slimtier.bench.tasks.base import Item, MeanOfItems, name_of, text_of

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


class Gsm8k(MeanOfItems):
    """Rows {"question", "answer"}; the answer ends in #### and the number."""

    name = "gsm8k"
    version = 1
    files = ("gsm8k_test_400.jsonl", "gsm8k_test.jsonl", "test.jsonl")
    metrics = ("exact_match",)

    def item(self, row: Any, number: int) -> Item:
        reference = None
        if "answer" in row:
            reference = last_number(text_of(row, "answer").rpartition("####")[2])
            if reference is None:
                raise ValueError("has an answer without a number after ####")
        return Item(name_of(row, number), self.name, (text_of(row, "question"),), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        return {"exact_match": float(last_number(answer) == item.reference)}


def last_number(text: str) -> float | None:
    """The last number in a text: 1,200 and $1200.00 are the same. None without one."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "").replace("$", "")) if found else None
