"""The tables of decode_vs_peers: every system over all prompts, and what speculation gains by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common import bootstrap_ratio, markdown_table, median, ratio_cell

TRANSFORMERS, LLAMA = "transformers fp32 plain", "llama.cpp plain"
LOOKUPS = {TRANSFORMERS: "transformers fp32 prompt lookup", LLAMA: "llama.cpp prompt lookup"}
# family: system -> what its worker is told
ON_TRANSFORMERS: dict[str, dict[str, dict[str, Any]]] = {
    "hf": {
        TRANSFORMERS: {"method": "plain"},
        LOOKUPS[TRANSFORMERS]: {"method": "lookup"},
        "transformers fp32 early exit": {"method": "early_exit"},
    },
    "economize": {
        "economize fp32 prompt lookup": {"technique": "lookup"},
        "economize fp32 layer skip": {"technique": "layer_skip"},
    },
    "flashspec": {"flashspec fp32 prompt lookup": {}},
}
COPYING = ("summarization", "rag")  # the categories whose answers quote their prompts

_HEADERS = (
    *("system", "tokens/s", "end to end", "first token, s", "÷ transformers", "÷ llama.cpp", "tokens as native plain"),
    *("as own plain", "mean acceptance length", "tokens a call", "looped"),
)
_MEDIANS = ("tokens_per_s", "end_to_end_tokens_per_s", "time_to_first_token_s")
_LAST_MEDIANS = ("mean_acceptance_length", "tokens_per_target_call", "loop_share")


class Answers:
    """The rows of a run, by system and in the order of the prompts."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.systems = list(dict.fromkeys(row["system"] for row in rows))
        self.categories = list(dict.fromkeys(row["category"] for row in rows))
        self._rows = rows

    def column(self, system: str, key: str, categories: Sequence[str] = ()) -> list[Any]:
        mine = [row for row in self._rows if row["system"] == system]
        return [row.get(key) for row in mine if not categories or row["category"] in categories]

    def ratio(self, system: str, base: str, categories: Sequence[str] = ()) -> str:
        """Tokens/s of `system` ÷ those of `base`, prompt by prompt; empty when one did not take part."""
        if system not in self.systems or base not in self.systems:
            return ""
        above, below = (self.column(each, "tokens_per_s", categories) for each in (system, base))
        return ratio_cell(bootstrap_ratio(above, below))

    def share_of_true(self, system: str, key: str) -> str:
        values = self.column(system, key)
        return f"{sum(values)}/{len(values)}"


def systems_table(answers: Answers) -> str:
    rows = [
        [
            system,
            *(median(answers.column(system, key)) for key in _MEDIANS),
            answers.ratio(system, TRANSFORMERS),
            answers.ratio(system, LLAMA),
            answers.share_of_true(system, "same_as_native_plain"),
            answers.share_of_true(system, "same_as_own_plain"),
            *(median(answers.column(system, key)) for key in _LAST_MEDIANS),
        ]
        for system in answers.systems
    ]
    return markdown_table(_HEADERS, rows)


def gains_table(answers: Answers, gains: Sequence[tuple[str, str]]) -> str:
    """For each pair (speculating system, its plain self) the ratio of tokens/s in each category, in those that quote
    their prompts taken together, and in all."""
    known = [gain for gain in gains if set(gain) <= set(answers.systems)]
    groups: list[tuple[str, Sequence[str]]] = [(category, (category,)) for category in answers.categories]
    if set(COPYING) <= set(answers.categories):
        groups.append((" and ".join(COPYING), COPYING))
    groups.append(("all", ()))
    rows = [[label, *(answers.ratio(*gain, group) for gain in known)] for label, group in groups]
    return markdown_table(["speculation ÷ plain", *(system for system, _ in known)], rows)
