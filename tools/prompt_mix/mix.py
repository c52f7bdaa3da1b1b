"""The mix itself: conversations of all kinds by their shares, each once, none like held-out text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from slimtier.train.overlap import HeldOut, split_words
from slimtier.train.prompts import Conversation
from tools.prompt_mix.documents import Document
from tools.prompt_mix.grammar import read_grammar
from tools.prompt_mix.long_prompts import LongPrompts
from tools.prompt_mix.passages import find_passages

Prompt = tuple[str, str]  # source, text


@dataclass(frozen=True, slots=True)
class Kind:
    """Its share of the mix, and the section of the follow-ups that suit it."""

    share: float
    follow_ups: str


KINDS = {
    "plain": Kind(0.60, "follow_plain"),
    "math": Kind(0.10, "follow_math"),
    "question": Kind(0.06, "follow_question"),
    "code": Kind(0.06, "follow_code"),
    "long": Kind(0.08, "follow_long"),
    "writing": Kind(0.06, "follow_text"),
    "translation": Kind(0.04, "follow_translation"),
}
SECOND_TURN = 0.25  # of all conversations
THIRD_TURN = 0.15  # of those
OTHER_PROMPT = 0.25  # of further turns are another prompt of the kind, not a follow-up
TEMPLATED_MATH = 0.4
SUMMARIES = 0.55  # of the long prompts
SPACED = 0.4  # of the translations have the spaces that tokenised corpora have
PATIENCE = 3000  # unusable prompts in a row after which a kind counts as exhausted

_STOP = re.compile(r"(?<=[^\W\d])([,;.!?])(?=\s|$)|(?<=[“”»])([,.])")


class Mix:
    """Draws conversations; counts what came out and what was dropped. `shares`: of the kinds that are wanted, in any
    unit, instead of those of KINDS."""

    def __init__(
        self,
        rows: Sequence[Prompt],
        documents: Sequence[Document],
        held_out: HeldOut,
        random: Random,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        given = shares or {name: kind.share for name, kind in KINDS.items()}
        self.shares = {name: share / sum(given.values()) for name, share in given.items()}
        self.counts: Counter[str] = Counter()
        self.turns: Counter[int] = Counter()
        self.overlaps: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self._held_out = held_out
        self._random = random
        self._grammar = read_grammar()
        self._seen: set[tuple[str, ...]] = set()
        sources = self._sources(rows, documents)
        self._kinds = {kind: self._distinct(kind, sources[kind]) for kind in self.shares}

    def conversations(self, count: int) -> Iterator[Conversation]:
        """At most `count`; when a kind is exhausted the others fill its share."""
        live = dict(self._kinds)
        while live and self.counts.total() < count:
            # the kind that is furthest behind: so every prefix has the mix
            kind = max(live, key=lambda name: self.shares[name] * (self.counts.total() + 1) - self.counts[name])
            prompt = next(live[kind], None)
            if prompt is None:
                del live[kind]
                continue
            source, turns = prompt[0], [prompt[1]]
            while len(turns) < 3 and self._random.random() < (SECOND_TURN, THIRD_TURN)[len(turns) - 1]:
                turns.append(self._next_turn(kind, turns))
            self.counts[kind] += 1
            self.turns[len(turns)] += 1
            yield Conversation(source + "+turn" * (len(turns) - 1), tuple(turns))

    def report(self) -> str:
        """A line for each kind: rows, their part of all, dropped for overlap and as repeats; then the turns."""
        total = self.counts.total()
        lines = [f"{'kind':<12} {'rows':>6} {'share':>6} {'wanted':>6} {'overlap':>8} {'repeats':>8}"]
        for kind, wanted in self.shares.items():
            share = self.counts[kind] / max(total, 1)
            dropped = f"{self.overlaps[kind]:>8} {self.repeats[kind]:>8}"
            lines.append(f"{kind:<12} {self.counts[kind]:>6} {share:>6.1%} {wanted:>6.0%} {dropped}")
        turns = ", ".join(f"{self.turns[n]} with {n} turn{'s' * (n > 1)}" for n in sorted(self.turns))
        return "\n".join([*lines, f"{total} rows ({turns}); {self.overlaps.total()} dropped for overlap"])

    def _sources(self, rows: Sequence[Prompt], documents: Sequence[Document]) -> dict[str, Iterator[Prompt]]:
        """Where the prompts of each kind come from; most never end."""
        rows = self._random.sample(rows, len(rows))
        sums = [row for row in rows if row[0].startswith("gsm8k")]
        plain = [row for row in rows if not row[0].startswith("gsm8k")]
        long = LongPrompts(find_passages(plain), documents, self._grammar, self._random)
        summaries = _labelled("long:summarize", long.summaries())
        asked = _labelled("long:rag", long.questions())
        return {
            "plain": iter(plain),
            "math": _either(self._templated("math"), iter(sums), TEMPLATED_MATH, self._random),
            "long": _either(summaries, asked, SUMMARIES, self._random),
            **{kind: self._templated(kind) for kind in ("question", "code", "writing", "translation")},
        }

    def _templated(self, kind: str) -> Iterator[Prompt]:
        while True:
            text = self._grammar.expand(kind, self._random)
            if kind == "translation" and self._random.random() < SPACED:
                text = spaced(text)
            yield f"template:{kind}", text

    def _distinct(self, kind: str, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
        """The prompts that are new and do not overlap with held-out text."""
        unusable = 0
        for source, text in prompts:
            if self._is_new(kind, text):
                unusable = 0
                yield source, text
                continue
            unusable += 1
            if unusable > PATIENCE:
                return

    def _is_new(self, kind: str, text: str) -> bool:
        key = tuple(split_words(text))
        if key in self._seen:
            self.repeats[kind] += 1
            return False
        self._seen.add(key)
        if self._held_out.overlaps(text):
            self.overlaps[kind] += 1
            return False
        return True

    def _next_turn(self, kind: str, turns: list[str]) -> str:
        if kind != "long" and self._random.random() < OTHER_PROMPT:
            other = next(self._kinds[kind], None)
            if other is not None:
                return other[1]
        while True:
            text = self._grammar.expand(KINDS[kind].follow_ups, self._random)
            if text not in turns and not self._held_out.overlaps(text):
                return text


def spaced(prompt: str) -> str:
    """The sentence behind the first colon with its punctuation set apart, as in tokenised corpora."""
    head, colon, sentence = prompt.partition(": ")
    if not head.startswith("Translate "):
        return prompt
    sentence = re.sub(r"([„“”])", r" \1 ", _STOP.sub(r" \1\2", sentence))
    return head + colon + re.sub(r" {2,}", " ", sentence).strip()


def _labelled(source: str, texts: Iterator[str]) -> Iterator[Prompt]:
    return ((source, text) for text in texts)


def _either(first: Iterator[Prompt], second: Iterator[Prompt], share: float, random: Random) -> Iterator[Prompt]:
    """Prompts of both, the first's with probability `share`; of one alone when the other has ended."""
    while True:
        order = (first, second) if random.random() < share else (second, first)
        prompt = next(order[0], None) or next(order[1], None)
        if prompt is None:
            return
        yield prompt
