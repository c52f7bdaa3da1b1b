"""Draft heads in decoding with acceptance held equal: what a head's cost alone is worth.

    python -m benchmarks.heads_alike --model gemma3-270m
    python -m benchmarks.heads_alike --shape llama-3.2-1b --prompts 6

Each head sits on a drafter of random weights in the model's dimensions, which runs as any draft does. What it drafts is
replaced by the next tokens of plain decoding, right as far as a seed says at each position (the chances: those that
`slimtier advise head` assumes of a trained draft). So every head has the same drafts accepted in the same rounds, and
nothing is said of how well it guesses. All arms take turns on each prompt; ratios are paired by prompt, with a
bootstrap interval. Answers must be the tokens of plain decoding. With --shape the model's weights are random too, and
so are its prompts: what it costs to run is all that is asked of it (its checkpoint is kept below build/random).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, parser, say, writer
from benchmarks.prompts import fitting, own_prompts
from slimtier.advise.head import ASSUMED_ACCEPTANCES, head_name
from slimtier.bench.contestants import in_turn
from slimtier.bench.statistics import bootstrap_ratio, markdown_table, median, ratio_text
from slimtier.drafters.eagle.drafter import Drafted, EagleDrafter
from slimtier.types import Draft

if TYPE_CHECKING:
    from pathlib import Path

    from slimtier.engine import Engine

NAME = "heads_alike"
MOST_TOKENS, QUICK_TOKENS, MOST_PROMPT_TOKENS = 128, 24, 1500
RANDOM_PROMPT_TOKENS = 100
SHAPES: dict[str, dict[str, Any]] = {  # of models that are not here
    "llama-3.2-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    },
    "qwen3-0.6b": {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip


class Told(EagleDrafter):
    """Runs, and is then told what it drafted: `answer` is the prompt and all that plain decoding puts after it."""

    answer: Sequence[int] = ()

    def draft(self, contexts: Any, limits: Any, stops: Any) -> list[Drafted]:
        found = super().draft(contexts, limits, stops)
        return [self._told(one, len(context.token_ids)) for one, context in zip(found, contexts, strict=True)]

    def _told(self, drafted: Drafted, position: int) -> Drafted:
        count = len(drafted.draft.token_ids)
        right = [*self.answer[position : position + count]]
        right += [0] * (count - len(right))
        chances = random.Random(position)
        kept = 0
        while kept < count and chances.random() < ASSUMED_ACCEPTANCES[kept]:
            kept += 1
        wrong = [token + 1 if token == 0 else token - 1 for token in right[kept:]]
        return replace(drafted, draft=Draft((*right[:kept], *wrong)))


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__ or "", NAME)
    model = options.add_mutually_exclusive_group()
    model.add_argument("--model", default="gemma3-270m")
    model.add_argument("--shape", choices=sorted(SHAPES), help="random weights of a model's dimensions")
    options.add_argument("--precision", default="q8", help="of the model; drafts are q8")
    options.add_argument("--lengths", type=int, nargs="+", default=[2, 5], help=f"1 … {len(ASSUMED_ACCEPTANCES)}")
    options.add_argument("--prompts", type=int, default=15, help="of the sixty in benchmarks/prompts.py")
    arguments = options.parse_args(argv)
    if not 1 <= arguments.prompts <= len(own_prompts()):
        raise SystemExit(f"--prompts {arguments.prompts}: there are {len(own_prompts())}")
    if not all(1 <= length <= len(ASSUMED_ACCEPTANCES) for length in arguments.lengths):
        raise SystemExit(f"--lengths {arguments.lengths}: give 1 to {len(ASSUMED_ACCEPTANCES)}")
    target, prompts = prepare(arguments)
    engines = make_engines(target, arguments.lengths)
    plain = engines["plain"]
    request = {"max_new_tokens": QUICK_TOKENS if arguments.quick else MOST_TOKENS, "ignore_eos": True}
    rows = []
    with writer(arguments, NAME) as out:
        model = arguments.shape or arguments.model
        out.write("setting", model=model, precision=arguments.precision, acceptances=ASSUMED_ACCEPTANCES)
        for number, (prompt, ids) in enumerate(prompts.items()):
            wanted = plain.generate(ids, **request)
            for name in in_turn(list(engines), number):
                engine = engines[name]
                if isinstance(engine.drafter, Told):
                    engine.drafter.answer = [*ids, *wanted.token_ids]
                engine.generate(ids, **{**request, "max_new_tokens": 8})  # until the caches hold what it reads
                rows.append(answered(name, prompt, engine.generate(ids, **request), wanted))
                out.write("answer", **rows[-1])
            say(f"prompt {number + 1} of {len(prompts)} ({prompt})")
    print(table(list(engines), rows))


def prepare(arguments: Any) -> tuple[Any, dict[str, list[int]]]:
    """The model, and the prompts' token ids by name."""
    from slimtier.models.native import load_native
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    files = resolve(str(random_checkpoint(arguments.shape)) if arguments.shape else arguments.model)
    target = load_native(files, precision=arguments.precision, threads=arguments.threads)
    count = 2 if arguments.quick else arguments.prompts
    if arguments.shape:
        draw = random.Random(arguments.seed)
        vocab = target.info.vocab_size
        return target, {f"random-{i}": draw.choices(range(vocab), k=RANDOM_PROMPT_TOKENS) for i in range(count)}
    chosen = own_prompts()[:: len(own_prompts()) // count][:count]
    return target, {one.name: ids for one, ids in fitting(chosen, load_tokenizer(files), MOST_PROMPT_TOKENS)}


def random_checkpoint(shape: str) -> Path:
    """A Llama of random bfloat16 weights in these dimensions; made once."""
    path = ROOT / "build/random" / shape
    if not path.is_dir():
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        say(f"making {path}")
        config = LlamaConfig(**SHAPES[shape], tie_word_embeddings=True)
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
        beside = path.with_name(f"{shape}.part")
        model.save_pretrained(beside)
        beside.rename(path)
    return path


def make_engines(target: Any, lengths: Sequence[int]) -> dict[str, Engine]:
    """Plain decoding, and an engine for each head and length, all on one target."""
    from slimtier.advise.random_draft import eagle_shape, random_files
    from slimtier.advise.timing import usual_heads
    from slimtier.drafters.eagle.runtime_native import NativeRuntime
    from slimtier.engine import Engine

    vocab, width = target.info.vocab_size, target.info.hidden_size
    heads = [head for head in usual_heads(vocab, width) if head.kind != "slim" or head.rank == width // 8]
    engines = {"plain": Engine(target)}
    for head in heads:
        runtime = NativeRuntime(random_files(eagle_shape(target.config, head), coded=True), target, "q8")
        for length in lengths:
            drafter = Told(runtime, runtime.config.capture)
            engines[f"{head_name(head)} K={length}"] = Engine(target, drafter, num_speculative_tokens=length)
    return engines


def answered(name: str, prompt: str, found: Any, wanted: Any) -> dict[str, Any]:
    stats = found.stats
    return {
        "arm": name, "prompt": prompt, "tokens_per_s": stats.tokens_per_s,
        "mean_acceptance_length": stats.mean_acceptance_length, "as_plain": found.token_ids == wanted.token_ids,
    }  # fmt: skip


def table(arms: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Each arm's speed, beside plain decoding and, of slim, beside the others at its length."""
    speeds = {arm: [row["tokens_per_s"] for row in rows if row["arm"] == arm] for arm in arms}
    lines = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        slim = next((one for one in arms if one.startswith("slim") and one.split()[-1] == arm.split()[-1]), arm)
        against = [bootstrap_ratio(*pair) for pair in ((speeds[arm], speeds["plain"]), (speeds[slim], speeds[arm]))]
        same = f"{sum(row['as_plain'] for row in mine)}/{len(mine)}"
        length = median([row["mean_acceptance_length"] for row in mine])
        lines.append([arm, median(speeds[arm]), *map(ratio_text, against), length, same])
    return markdown_table(
        ["arm", "tokens/s", "÷ plain", "slim ÷ this", "mean acceptance length", "tokens as plain"], lines
    )


if __name__ == "__main__":
    main()
