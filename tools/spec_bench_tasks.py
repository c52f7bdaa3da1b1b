"""Spec-Bench's summaries and translations as the tasks `summarization` and `translation`, with their references.

python -m tools.spec_bench_tasks EVAL/spec_bench.jsonl --out DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slimtier.files import writing
from slimtier.jsonl import read_rows

ASK = {"summarization": "Summarize: ", "translation": "Translate German to English: "}
NAMES = {"summarization": ("article", "summary"), "translation": ("source", "reference")}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.spec_bench_tasks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("file", type=Path, metavar="spec_bench.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args(given)
    rows = list(read_rows(arguments.file))
    for task in ASK:
        with writing(arguments.out / f"{task}.jsonl") as out:
            for row in rows:
                if row["category"] == task and row.get("reference"):
                    out.write(json.dumps(as_task(row, task), ensure_ascii=False) + "\n")
    return 0


def as_task(row: Mapping[str, Any], task: str) -> dict[str, str]:
    """A row of the task: what is asked without the words that ask, and the first reference."""
    asked, reference = NAMES[task]
    text = str(row["turns"][0]).removeprefix(ASK[task])
    return {"id": str(row["question_id"]), asked: text, reference: str(row["reference"][0])}


if __name__ == "__main__":
    sys.exit(main())
