"""Makes the mix of prompts that the shipped draft is trained on.

    python -m tools.training_prompts PROMPTS.jsonl --texts texts.jsonl --eval DIR --out mix.jsonl

PROMPTS.jsonl has rows {"source", "prompt"}: grade-school sums, whose source begins with gsm8k, and all sorts of others.
texts.jsonl is from tools/training_texts.py. Added are templated prompts of the kinds that are missing, long ones made
of the texts, and further turns. Nothing that shares 13 words in a row with the .jsonl files in DIR is kept. Every
prefix of the output has the mix; the same seed gives the same file. --shares makes another mix, as question=3 writing=3
long=2 code=1 for prose.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import track

from slimtier.errors import InputError
from slimtier.files import writing
from slimtier.train.overlap import read_held_out
from slimtier.train.prompts import Conversation, read_prompts
from tools.prompt_mix.documents import read_documents
from tools.prompt_mix.mix import KINDS, Mix, Prompt

BRIEF_TASK, BRIEF_LONG = 400, 0.5


def main(given: Sequence[str] | None = None) -> int:
    """Write the mix and print what is in it; 1 after an error."""
    arguments = parse_arguments(given)
    try:
        rows = [row for path in arguments.prompts for row in single_prompts(path)]
        documents = [document for path in arguments.texts for document in read_documents(path)]
        shares = dict(read_share(pair) for pair in arguments.shares)
        mix = Mix(rows, documents, read_held_out(arguments.eval), Random(arguments.seed), shares)
        with writing(arguments.out) as out:
            conversations = mix.conversations(arguments.count)
            drawn = track(conversations, "drawing prompts", arguments.count, console=Console(stderr=True))
            for one in brief(drawn, Random(1)) if arguments.brief else drawn:
                out.write(json.dumps({"source": one.source, "turns": one.turns}, ensure_ascii=False) + "\n")
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    print(mix.report())
    missing = arguments.count - mix.counts.total()
    if missing:
        print(f"all kinds were exhausted {missing} rows before the {arguments.count} asked for")
    return 0


def brief(conversations: Iterable[Conversation], random: Random) -> Iterator[Conversation]:
    """Those whose prompts are worth reading: a task prompt of more than 400 characters, and half of those
    about a long text, are left out."""
    for one in conversations:
        if one.source.startswith("t0") and sum(map(len, one.turns)) > BRIEF_TASK:
            continue
        if one.source.startswith("long") and random.random() > BRIEF_LONG:
            continue
        yield one


def read_share(pair: str) -> tuple[str, float]:
    """A kind and its share, of "question=3" for example. Raises InputError for no kind of the mix, or no share."""
    kind, _, value = pair.partition("=")
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if kind not in KINDS or not 0 < share < math.inf:
        raise InputError(f"--shares {pair} is not KIND=SHARE with a KIND of {', '.join(KINDS)} and a SHARE above 0")
    return kind, share


def single_prompts(path: Path) -> list[Prompt]:
    """(source, text) of every usable row; says which rows are not."""
    file = read_prompts(path)
    longer = sum(len(one.turns) > 1 or one.system is not None for one in file.conversations)
    dropped = dict(file.dropped) | ({"more than a single prompt": longer} if longer else {})
    for reason, count in dropped.items():
        print(f"{path}: {count} rows left out: {reason}")
    return [(one.source, one.turns[0]) for one in file.conversations if len(one.turns) == 1 and one.system is None]


def parse_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.training_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompts", nargs="+", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("--texts", nargs="*", type=Path, default=[], help="what tools/training_texts.py wrote")
    parser.add_argument("--eval", type=Path, required=True, help="directory of held-out .jsonl and .jsonl.gz files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20000, help="rows (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--shares",
        nargs="+",
        default=[],
        metavar="KIND=SHARE",
        help=f"another mix, of these kinds alone (of {' '.join(KINDS)})",
    )
    parser.add_argument(
        "--brief", action="store_true", help="leave out rows that take long to read, for their answers are short"
    )
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
