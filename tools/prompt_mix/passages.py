"""Passages found in prompts for reading comprehension, summaries and reviews."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FEWEST = 40  # words of a passage
_FEWEST_REVIEW = 15

_NEWS = ("t0:xsum", "t0:cnn_dailymail", "t0:multi_news_s", "t0:multi_news_what", "t0:multi_news_distill")
_NO_NEWS = ("generate_story", "spice_up_story")  # highlights, no article
_REVIEWS = ("t0:amazon_polarity", "t0:yelp_review")
_LEADS = re.compile(
    r"(?:Summari[sz]e(?: this document)?|Article|Document|Sum the following article in brief|First, please read the "
    r"article below\.|My college roommate asked me what this article means):?\s+"
)
_TRAILS = re.compile(
    r"\s*(?:===|\n(?:Summary:|TL;DR:|This boils down|How would you rephrase|So I recap|Now, can you)|E-mail to a fr).*",
    re.DOTALL,
)
_REVIEW = re.compile(r"(?:Product review|Review|Review text):\s+(.+)$", re.MULTILINE)
_TEXTS = (
    re.compile(r"(?:Movie plot|Hint|[Bb]ackground|and a hint|the other day) ?: (.+?)\.?$", re.MULTILINE),
    re.compile(r'for the passage "(.+)"\?$', re.DOTALL),
    re.compile(r"Given the below context:\s+(.+)\n\nGuess", re.DOTALL),
)
_TITLED = re.compile(r"(?:^|[.?:] | - )([A-Z][^.?:\n]{2,60}?) -  ([^\n]{80,}[.])")
_ASKED = (  # the text first, then the question
    re.compile(r'Given the following passage\s+"(?P<text>.+?)",\s+.*Question: (?P<ask>[^\n]+\?)', re.DOTALL),
    re.compile(r"Question: (?P<ask>[^\n]+\?)\nContext: (?P<text>.+)", re.DOTALL),
    re.compile(r'Question: "(?P<ask>[^\n]+\?)"\s+Context: "(?P<text>.+)"\s+Answer:', re.DOTALL),
    re.compile(r'the question "(?P<ask>[^\n]+\?)" is in "(?P<text>.+)"\. Can you', re.DOTALL),
    re.compile(r"given this paragraph: \s+(?P<text>[^\n]{80,})\s+Q: (?P<ask>[^\n]+\?)"),
    re.compile(r"Question: (?P<ask>[^\n]+\?)\nMovie plot title: [^\n]+\nMovie plot: (?P<text>.+)", re.DOTALL),
)


@dataclass(frozen=True, slots=True)
class Passages:
    """News articles, other texts, customer reviews; pairs of title and text; pairs of text and question."""

    news: tuple[str, ...]
    texts: tuple[str, ...]
    reviews: tuple[str, ...]
    titled: tuple[tuple[str, str], ...]
    asked: tuple[tuple[str, str], ...]


def find_passages(prompts: Iterable[tuple[str, str]]) -> Passages:
    """The passages in (source, prompt) pairs, each once."""
    news: dict[str, None] = {}
    texts: dict[str, None] = {}
    reviews: dict[str, None] = {}
    titled: dict[str, str] = {}
    asked: dict[str, str] = {}
    for source, prompt in prompts:
        if source.startswith(_NEWS) and not source.endswith(_NO_NEWS):
            article = _clean(_TRAILS.sub("", _LEADS.sub("", longest_block(prompt))))
            if _long_enough(article):
                news[article] = None
        elif source.startswith(_REVIEWS):
            found = (_clean(match[1]) for match in _REVIEW.finditer(prompt))
            reviews |= {review: None for review in found if _long_enough(review, _FEWEST_REVIEW)}
        elif source.startswith("t0:dbpedia"):
            titled |= {match[1].strip(): _clean(match[2]) for match in _TITLED.finditer(prompt)}
        elif (question := _first(_ASKED, prompt)) is not None:
            asked.setdefault(_clean(question["text"]), question["ask"].strip())
        elif (text := _first(_TEXTS, prompt)) is not None and _long_enough(text[1]):
            texts[_clean(text[1])] = None
    texts |= {text: None for text in asked if _long_enough(text)}
    return Passages(tuple(news), tuple(texts), tuple(reviews), tuple(titled.items()), tuple(asked.items()))


def longest_block(prompt: str) -> str:
    """The longest of the parts between blank lines."""
    return max(re.split(r"\n\s*\n", prompt.strip()), key=len)


def _first(patterns: Iterable[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.search(text)) is not None), None)


def _long_enough(text: str, fewest: int = _FEWEST) -> bool:
    return len(text.split()) >= fewest


def _clean(text: str) -> str:
    """Without mark-up and broken escapes."""
    return re.sub(r"[ \t]{2,}", " ", text.replace("<br />", " ").replace("\\n", " ").replace("\\", "")).strip(' \n"')
