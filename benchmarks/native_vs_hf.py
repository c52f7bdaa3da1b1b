"""The native runtime beside transformers: teacher-forced logits in float32 on real text.

    python -m benchmarks.native_vs_hf --models smollm2-135m gemma3-270m

Each text is a prompt and what the model itself (native, q8) wrote after it, 200 tokens together. Both runtimes get the
same numbers as weights: transformers reads a float32 checkpoint made of the file's own codes. Reported are the largest
absolute difference of a logit, and every position where the two argmax differ, with the gap between the two tokens'
logits in either runtime: a near-tie if no gap is above twice the largest difference. Exit code 1 if the largest
difference is above 2e-3, or an argmax differs that is no near-tie.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import parser, say, writer
from benchmarks.prompts import fitting, own_prompts, read_prompts, sample
from slimtier.bench.statistics import markdown_table

NAME = "native_vs_hf"
MODELS = ("smollm2-135m", "gemma3-270m")
TEXTS, QUICK_TEXTS, TEXT_TOKENS, QUICK_TOKENS = 5, 2, 200, 48
LIMIT = 2e-3


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parser(__doc__ or "", NAME)
    options.add_argument("--models", nargs="+", default=list(MODELS))
    options.add_argument("--texts", type=int, default=TEXTS)
    options.add_argument("--prompts", type=Path, help="JSONL of prompts in Spec-Bench's form (default: our own)")
    arguments = options.parse_args(argv)
    rows, failed = [], False
    with writer(arguments, NAME) as out:
        for model in arguments.models:
            compared = list(compare(model, arguments))
            worst = max(row["max_abs_difference"] for row in compared)
            disagreements = [each for row in compared for each in row["disagreements"]]
            near = [each for each in disagreements if is_near_tie(each, worst)]
            failed |= worst > LIMIT or len(near) < len(disagreements)
            for row in compared:
                out.write("text", model=model, **row)
            out.write("model", model=model, max_abs_difference=worst, near_ties=near, disagreements=len(disagreements))
            positions = sum(row["num_tokens"] for row in compared)
            rows.append([model, len(compared), positions, f"{worst:.1e}", len(disagreements), len(near)])
            for each in disagreements:
                say(f"{model}: argmax differs: {each}{' (near-tie)' if each in near else ''}")
    headers = ["model", "texts", "positions", "max abs difference", "argmax differs", "of them near-ties"]
    print(markdown_table(headers, rows))
    return 1 if failed else 0


def is_near_tie(disagreement: dict[str, Any], difference: float) -> bool:
    """Whether runtimes that differ by at most `difference` in each logit may choose either token."""
    return bool(max(disagreement["native_gap"], disagreement["hf_gap"]) <= 2 * difference)


def compare(model: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each text."""
    import torch

    from slimtier.bench.checkpoint import dense_checkpoint
    from slimtier.models.hf_load import load_model
    from slimtier.models.native import load_native
    from slimtier.models.resolve import resolve

    files = resolve(model)
    texts = list(write_texts(files, arguments))
    native = load_native(files, precision="fp32", threads=arguments.threads)
    torch.set_num_threads(arguments.threads)
    reference = load_model(str(dense_checkpoint(files)), torch.float32).eval()
    for name, ids in texts:
        cache = native.begin(1, len(ids))
        hidden, _ = native.forward(ids, cache, [len(ids)])
        ours = native.head(hidden)  # [tokens, vocab]
        with torch.inference_mode():
            theirs = reference(torch.tensor([ids])).logits[0]
        disagreements = [_disagreement(name, at, ours[at], theirs[at]) for at in _differing(ours, theirs)]
        worst = float((ours - theirs).abs().max())
        say(f"{model}, {name}: {len(ids)} tokens, largest difference {worst:.1e}")
        yield {"text": name, "num_tokens": len(ids), "max_abs_difference": worst, "disagreements": disagreements}


def write_texts(files: Any, arguments: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """Token ids of seeded prompts, each continued by the model to the full length (past any EOS)."""
    from slimtier.engine import Engine
    from slimtier.loading import RunOptions, load

    loaded = load(files, RunOptions(precision="q8", threads=arguments.threads))
    engine = Engine(loaded.target, num_speculative_tokens=0)
    count, length = (QUICK_TEXTS, QUICK_TOKENS) if arguments.quick else (arguments.texts, TEXT_TOKENS)
    known = read_prompts(arguments.prompts) if arguments.prompts else own_prompts()
    per_category = -(-count // len({prompt.category for prompt in known}))
    for prompt, ids in fitting(sample(known, per_category, arguments.seed)[:count], loaded.tokenizer, 10**6):
        kept = ids[: length * 3 // 4]
        with engine.stream(kept, max_new_tokens=length - len(kept), ignore_eos=True) as answer:
            yield prompt.name, kept + [token for step in answer for token in step.token_ids]


def _differing(ours: Any, theirs: Any) -> list[int]:
    return list((ours.argmax(-1) != theirs.argmax(-1)).nonzero().flatten().tolist())


def _disagreement(text: str, position: int, ours: Any, theirs: Any) -> dict[str, Any]:
    """The two choices, and by how much each runtime prefers its own over the other's."""
    mine, other = int(ours.argmax()), int(theirs.argmax())
    return {
        "text": text,
        "position": position,
        "native_token": mine,
        "hf_token": other,
        "native_gap": float(ours[mine] - ours[other]),
        "hf_gap": float(theirs[other] - theirs[mine]),
    }


if __name__ == "__main__":
    sys.exit(main())
