"""The README's table of systems, made from a results file: python -m benchmarks.readme_table results/main.jsonl"""

from __future__ import annotations

import sys
from pathlib import Path

from slimtier.bench.results import read_results
from slimtier.bench.statistics import markdown_table, ratio_text
from slimtier.bench.summary import ALL, Answers, summarise

BASES = {"÷ transformers": "transformers fp32 plain", "÷ llama.cpp": "llama.cpp plain", "÷ vLLM": "vLLM fp32 plain"}


def readme_table(path: Path) -> str:
    """A row for each system that answered, ours first: decoding speed, and ratios paired prompt by prompt."""
    results = read_results([path])
    answers = Answers(results)
    summary = summarise(results, answers, groups=False)
    lines = sorted(summary.of(ALL), key=lambda line: summary.system(line.system).type != "slimtier")
    bases = {head: base for head, base in BASES.items() if summary.line(base) is not None}
    rows = [
        [
            line.system,
            line.speed.tokens_per_s,
            line.speed.time_to_first_token_s,
            line.work.mean_acceptance_length,
            *("1" if line.system == base else ratio_text(answers.ratio(line.system, base)) for base in bases.values()),
        ]
        for line in lines
    ]
    return markdown_table(["system", "tokens/s", "first token, s", "acceptance length", *bases], rows)


if __name__ == "__main__":
    print(readme_table(Path(sys.argv[1])))
