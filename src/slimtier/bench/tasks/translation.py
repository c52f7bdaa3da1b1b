"""Translations: BLEU (Papineni et al. 2002) and chrF (Popović 2015), as sacrebleu computes them, from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slimtier.bench.tasks.base import Item, name_of, text_of
from slimtier.errors import MissingDependencyError


class Translation:
    """Rows {"source", "reference", "languages": "German to English"}. BLEU is that of the whole run; a single answer's
    is smoothed."""

    name = "translation"
    version = 1
    files = ("translation.jsonl", "wmt14.jsonl")
    metrics = ("bleu", "chrf")

    def item(self, row: Any, number: int) -> Item:
        languages = row.get("languages", "German to English")
        if not isinstance(languages, str):
            raise ValueError(f"has languages {languages!r}, not a text such as 'German to English'")
        reference = text_of(row, "reference") if "reference" in row else None
        ask = f"Translate {languages}: {text_of(row, 'source')}"
        return Item(name_of(row, number), self.name, (ask,), reference)

    def score(self, item: Item, answer: str) -> Mapping[str, float]:
        sacrebleu = _sacrebleu()
        return {
            "bleu": sacrebleu.sentence_bleu(answer, [item.reference]).score / 100,
            "chrf": sacrebleu.sentence_chrf(answer, [item.reference]).score / 100,
        }

    def total(self, items: Sequence[Item], answers: Sequence[str]) -> Mapping[str, float]:
        pairs = zip(items, answers, strict=True)
        known = [(answer, item.reference) for item, answer in pairs if item.reference is not None]
        if not known:
            return {}
        sacrebleu = _sacrebleu()
        texts, references = [answer for answer, _ in known], [[reference for _, reference in known]]
        return {
            "bleu": sacrebleu.corpus_bleu(texts, references).score / 100,
            "chrf": sacrebleu.corpus_chrf(texts, references).score / 100,
        }


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise MissingDependencyError("BLEU and chrF need sacrebleu: pip install 'slimtier[scores]'") from error
    return sacrebleu
