"""Speculation changes nothing but the time: the same tokens, and the same logits to the bit, as plain decoding.

    python -m benchmarks.identity                  (60 prompts; hours on two cores)
    python -m benchmarks.identity --fraction 0.1   (a fixed tenth of them)

Native runtime, one row. For every precision and prompt: 32 tokens by plain decoding, greedily and sampled at
temperature 0.8 with gumbel coupling and a seed; then the same with every drafter at every num_speculative_tokens from
1 to 8. The prompt is prefilled once, and every later run crops the cache back to it. Compared are the output tokens
and, for each output position, a hash of the logits row [vocab] that decided it; the fused argmax must agree with those
logits.

Model drafters are asked once for what follows a context, 8 tokens, and cut to the length at hand. `draft_model` is the
target without ten of its layers, rounded to q8. Exit code 1 on any difference; it is named with prompt, drafter and
position.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.common import JsonlWriter, parser, say, writer
from benchmarks.prompts import fitting, own_prompts, read_prompts
from slimtier.bench.statistics import markdown_table
from slimtier.drafters.base import DraftContext, Drafter, Reading
from slimtier.types import Draft, SamplingParams, Verdict

NAME = "identity"
PRECISIONS, LENGTHS, QUICK_LENGTHS = ("fp32", "q8", "q4", "bf16"), range(1, 9), (1, 4, 8)
PROMPTS, QUICK_PROMPTS, NEW_TOKENS, QUICK_TOKENS, MOST_PROMPT_TOKENS = 60, 2, 32, 16, 400
SKIPPED = (5, 14, 16, 17, 18)  # layers that matter least: the draft agrees with the target about every second time
DROPPED = (5, 12, 13, 14, 15, 16, 17, 18, 19, 20)  # here about every fourth time


class Recorder:
    """A target that remembers a hash of the logits of every position, the last time it was computed: rejected tokens
    are computed over, so at the end the hashes along the output are those that decided it."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.info = target.info
        self.hashes: dict[int, bytes] = {}
        self._first = 0

    def begin(self, num_rows: int, capacity: int, inputs: Any = None) -> Any:
        return self.target.begin(num_rows, capacity, inputs)

    def forward(self, tokens: Sequence[int], cache: Any, lengths: Sequence[int], **options: Any) -> Any:
        self._first = cache.lengths[0]
        return self.target.forward(tokens, cache, lengths, **options)

    def head(self, hidden: Any, reduce: str = "logits") -> Any:
        logits = self.target.head(hidden)
        for row, values in enumerate(logits.numpy()):
            self.hashes[self._first + row] = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        if reduce == "logits":
            return logits
        chosen = self.target.head(hidden, "argmax")
        if chosen != logits.argmax(-1).tolist():
            raise AssertionError(f"the fused argmax {chosen} is not that of the logits {logits.argmax(-1).tolist()}")
        return chosen


class Remembering:
    """A drafter asked once a context: its drafts are kept, and cut to the length asked for. Its state outlives a
    request (the next run of the same prompt crops it), until `forget`."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.name = drafter.name
        self.capture: tuple[int, ...] = ()
        self._drafts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        return [Draft(self._draft(context)[:limit]) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: DraftContext) -> tuple[int, ...]:
        known = tuple(context.token_ids)
        if known not in self._drafts:
            self._drafts[known] = self.drafter.propose([replace(context, key=0)], [max(LENGTHS)])[0].token_ids
        return self._drafts[known]

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        pass

    def read(self, readings: Sequence[Reading]) -> None:
        pass

    def reset(self, keys: Sequence[int] | None = None) -> None:
        pass

    def forget(self) -> None:
        self._drafts.clear()


@dataclass(frozen=True, slots=True)
class Run:
    """Of one answer: the tokens, and the hash of the logits that decided each."""

    token_ids: tuple[int, ...]
    hashes: tuple[bytes, ...]
    mean_acceptance_length: float


def decode(engine: Any, ids: Sequence[int], new_tokens: int, sampling: SamplingParams) -> Run:
    result = engine.generate(list(ids), sampling, max_new_tokens=new_tokens, ignore_eos=True)
    first = len(ids) - 1
    hashes = tuple(engine.target.hashes[first + i] for i in range(len(result.token_ids)))
    return Run(result.token_ids, hashes, result.stats.mean_acceptance_length)


def differences(plain: Run, run: Run) -> Iterator[dict[str, Any]]:
    """The first differing token and the first differing logits, as far as both outputs are the same text."""
    for position, (wanted, got) in enumerate(zip(plain.token_ids, run.token_ids, strict=False)):
        if plain.hashes[position] != run.hashes[position]:
            yield {"what": "logits", "position": position}
            return
        if wanted != got:
            yield {"what": "token", "position": position, "wanted": wanted, "got": got}
            return
    if len(plain.token_ids) != len(run.token_ids):
        yield {"what": "length", "position": min(len(plain.token_ids), len(run.token_ids))}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = _options(argv)
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    files = resolve(arguments.model)
    given = read_prompts(arguments.prompts) if arguments.prompts else own_prompts()
    known = fitting(given, load_tokenizer(files), MOST_PROMPT_TOKENS)
    chosen = Random(arguments.seed).sample(known, min(PROMPTS, len(known)))
    chosen = chosen[: QUICK_PROMPTS if arguments.quick else ceil(arguments.fraction * len(chosen))]
    found = 0
    rows: list[list[Any]] = []
    with writer(arguments, NAME) as out:
        for precision in PRECISIONS:
            say(f"{precision}: {len(chosen)} prompts")
            bench = Bench(files, precision, arguments, out)
            for number, (prompt, ids) in enumerate(chosen):
                bench.compare(prompt.name, ids, seed=arguments.seed + number)
            rows += bench.summary()
            found += bench.found
        out.write("total", prompts=len(chosen), differences=found)
    headers = ["precision", "drafter", "sampling", "runs", "identical", "tokens compared", "mean acceptance length"]
    print(markdown_table(headers, rows))
    print(f"\n{found} differences" if found else "\nall tokens identical, all logits equal to the bit")
    return 1 if found else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--fraction", type=float, default=1.0, help="the share of the prompts to run")
    options.add_argument("--prompts", type=Path, help="JSONL of prompts in Spec-Bench's form (default: our own)")
    options.add_argument("--model", default="smollm2-135m")
    return options.parse_args(argv)


class Bench:
    """One precision: its engine, its drafters, and what was counted."""

    def __init__(self, files: Any, precision: str, arguments: argparse.Namespace, out: JsonlWriter) -> None:
        from slimtier.engine import Engine
        from slimtier.loading import RunOptions, load

        options = RunOptions(precision=precision, threads=arguments.threads)
        loaded = load(files, options)
        self.precision, self.out, self.found = precision, out, 0
        self.drafters = _drafters(files, loaded, arguments.threads)
        self.engine = Engine(Recorder(loaded.target))
        self.new_tokens = QUICK_TOKENS if arguments.quick else NEW_TOKENS
        self.lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
        self._counts: dict[tuple[str, str], Counter[str]] = {}

    def compare(self, prompt: str, ids: Sequence[int], seed: int) -> None:
        """Every drafter and length against plain decoding of one prompt."""
        for sampling in (SamplingParams(), SamplingParams(temperature=0.8, seed=seed, coupling="gumbel")):
            mode = "gumbel 0.8" if sampling.temperature else "greedy"
            plain = self._decode("none", 0, ids, sampling)
            for drafter in self.drafters.values():
                if isinstance(drafter, Remembering):
                    drafter.forget()
            for name, length in product(self.drafters, self.lengths):
                if name == "none":
                    continue
                run = self._decode(name, length, ids, sampling)
                different = list(differences(plain, run))
                self._count(name, mode, run, bool(different))
                setting = {"precision": self.precision, "drafter": name, "sampling": mode, "prompt": prompt}
                setting["num_speculative_tokens"] = length
                accepted = run.mean_acceptance_length
                self.out.write("run", **setting, identical=not different, mean_acceptance_length=accepted)
                for difference in different:
                    self.found += 1
                    say(f"DIFFERENT: {setting | difference}")
                    self.out.write("difference", **setting, **difference)

    def _decode(self, drafter: str, length: int, ids: Sequence[int], sampling: SamplingParams) -> Run:
        self.engine.drafter, self.engine.num_speculative_tokens = self.drafters[drafter], length
        return decode(self.engine, ids, self.new_tokens, sampling)

    def _count(self, name: str, mode: str, run: Run, different: bool) -> None:
        counts = self._counts.setdefault((name, mode), Counter())
        lengths = int(1000 * run.mean_acceptance_length)
        counts.update(runs=1, identical=not different, tokens=len(run.token_ids), lengths=lengths)

    def summary(self) -> list[list[Any]]:
        return [
            [
                self.precision,
                *key,
                count["runs"],
                count["identical"],
                count["tokens"],
                count["lengths"] / 1000 / count["runs"],
            ]
            for key, count in self._counts.items()
        ]


def _drafters(files: Any, loaded: Any, threads: int) -> dict[str, Any]:
    """Every drafter for `loaded`, a plain target."""
    from slimtier.bench.checkpoint import dense_checkpoint
    from slimtier.drafters.model import ModelDrafter
    from slimtier.drafters.none import NoDrafter
    from slimtier.models.native import load_native
    from slimtier.models.resolve import ModelFiles
    from slimtier.registry import DRAFTERS
    from slimtier.types import Route

    target, directory = loaded.target, dense_checkpoint(files, DROPPED)
    pruned = load_native(ModelFiles("pruned", "safetensors", directory), precision="q8", threads=threads)
    route = Route.skipping(target.info.num_layers, SKIPPED)
    return {
        "none": NoDrafter(),
        "ngram": DRAFTERS["ngram"].build(loaded, {}, lambda name: loaded),
        "auto": DRAFTERS["auto"].build(loaded, {}, lambda name: loaded),
        "layer_skip": Remembering(ModelDrafter(target, route=route, name="layer_skip")),
        "draft_model": Remembering(ModelDrafter(pruned, name="draft_model", vocab_size=target.info.vocab_size)),
    }


if __name__ == "__main__":
    sys.exit(main())
