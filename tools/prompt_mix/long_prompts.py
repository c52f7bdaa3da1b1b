"""Long prompts: texts to be summarized, and passages with a question about one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

from tools.prompt_mix.documents import Document, names_in
from tools.prompt_mix.grammar import Grammar
from tools.prompt_mix.passages import Passages

SHORTEST, LONGEST = 250, 900  # words of the text
DOCUMENTS = 0.7  # of the prompts are made of documents, if there are any, the others of passages
_CHUNK = 100  # words of a passage, as retrieval usually cuts them

_JOINTS = ("\n\n", "\n\n", "\n", " ")


class LongPrompts:
    """Endless summaries and questions; a kind that has no material ends at once."""

    def __init__(self, passages: Passages, documents: Sequence[Document], grammar: Grammar, random: Random) -> None:
        self._passages = passages
        self._grammar = grammar
        self._random = random
        self._sources = _by_source(documents)
        self._retrieved = _by_source([document for document in documents if len(document.paragraphs) > 1])

    def summaries(self) -> Iterator[str]:
        pools = [(self._passages.news, 5), (self._passages.texts, 2), (self._passages.reviews, 3)]
        pools = [(pool, weight) for pool, weight in pools if pool]
        while pools or self._sources:
            section = "summarize"
            if self._sources and (not pools or self._random.random() < DOCUMENTS):
                text = self._article()
            else:
                (pool,) = self._random.choices([pool for pool, _ in pools], [weight for _, weight in pools])
                text = self._random.choice(_JOINTS).join(self._some(pool))
                section = "summarize_reviews" if pool is self._passages.reviews else section
            yield fill(self._grammar.expand(section, self._random), text)

    def questions(self) -> Iterator[str]:
        asked, titled = self._passages.asked, self._passages.titled
        while asked or titled or self._retrieved:
            share = self._random.random()
            if self._retrieved and (share < DOCUMENTS or not (asked or titled)):
                parts, question = self._retrieve()
            elif asked and (share < 0.9 or not titled):
                text, question = self._random.choice(asked)
                others = [other for other in self._passages.texts if other != text]
                parts = [*self._some(others, len(text.split())), text]
            else:
                some = self._random.sample(titled, min(len(titled), self._random.randint(6, 12)))
                parts = [f"{title}: {text}" for title, text in some]
                question = self._question(self._random.choice(some)[0])
            yield fill(self._grammar.expand("rag", self._random), self._joined(parts), question)

    def _length(self) -> int:
        """Words of a text: short ones are as frequent as long ones on a logarithmic scale."""
        return round(math.exp(self._random.uniform(math.log(SHORTEST), math.log(LONGEST))))

    def _article(self) -> str:
        """A piece of one text, or several short ones of a source (news reports, say) together."""
        pool = self._random.choice(self._sources)
        wanted, words = self._length(), 0
        parts: list[str] = []
        for document in self._random.sample(pool, len(pool)):
            parts.append(document.piece(wanted - words, self._random))
            words += len(parts[-1].split())
            if words > 0.7 * wanted:
                break
        return self._random.choice(_JOINTS).join(parts)

    def _retrieve(self) -> tuple[list[str], str]:
        """Passages of a few documents, with their titles or without, and a question about a name in one of them."""
        wanted, words = self._length(), 0
        parts: list[str] = []
        pool = self._random.choice(self._retrieved)
        subject = self._random.choice(pool)
        titles = self._random.random() < 0.5
        asked = subject.title
        while words < wanted:
            document = subject if not parts or self._random.random() < 0.4 else self._random.choice(pool)
            piece = document.piece(_CHUNK, self._random)
            names = names_in(piece)
            if document is subject and names:
                asked = self._random.choice([*names, asked])
            parts.append(f"{document.title}: {piece}" if titles else piece)
            words += len(piece.split())
        return parts, self._question(asked)

    def _question(self, about: str) -> str:
        return self._grammar.expand("title_question", self._random).replace("TITLE", about)

    def _joined(self, parts: list[str]) -> str:
        self._random.shuffle(parts)
        if self._random.random() < 0.35:
            parts = [f"[{number}] {part}" for number, part in enumerate(parts, 1)]
        return self._random.choice(_JOINTS).join(parts)

    def _some(self, pool: Sequence[str], words: int = 0) -> list[str]:
        """So many passages that with `words` others they have a length drawn between the limits, if there are."""
        wanted = self._length()
        parts: list[str] = []
        for part in self._random.sample(pool, len(pool)):
            length = len(part.split())
            if words + length <= LONGEST:
                parts.append(part)
                words += length
            if words >= wanted:
                break
        return parts


def _by_source(documents: Sequence[Document]) -> list[list[Document]]:
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(document.source, []).append(document)
    return list(found.values())


def fill(template: str, text: str, question: str = "") -> str:
    """The template with its two gaps filled; what the text holds is left alone."""
    before, _, after = template.partition("TEXT")
    return before.replace("QUESTION", question) + text + after.replace("QUESTION", question)
