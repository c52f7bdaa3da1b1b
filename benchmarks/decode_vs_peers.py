"""Decoding speed beside the peers on the same prompts and weights: slimtier native, transformers, economize, flashspec
and llama.cpp.

    python -m benchmarks.decode_vs_peers --prompts spec_bench.jsonl --peer-python /path/to/peers/bin/python

The prompts' file has a {"question_id", "category", "turns"} a line; a seeded sample of each category is answered in at
most 128 tokens, ended by EOS, greedily. Each family of systems is a process of its own that sleeps while others work.
Every prompt is answered by all systems in turn, each time another one begins. The first answers are not counted.
Peers that the interpreter lacks are skipped by name. fp32 everywhere means the file's codes in float32 arithmetic;
llama.cpp runs the file itself, which for these models is beside native q4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import JsonlWriter, in_turn, loop_share, parser, say, writer
from benchmarks.peer_tables import LLAMA, LOOKUPS, ON_TRANSFORMERS, TRANSFORMERS, Answers, gains_table, systems_table
from benchmarks.prompts import Prompt, encode, fitting, own_prompts, read_prompts, sample
from benchmarks.worker import MissingPeer, Worker, check_idle

NAME = "decode_vs_peers"
MOST_TOKENS, QUICK_TOKENS, WARM_UP_TOKENS, PROBE_TOKENS = 128, 16, 16, 32
MOST_PROMPT_TOKENS = 1500
PRECISIONS, DRAFTERS = ("fp32", "q8", "q4"), ("none", "ngram", "auto")


@dataclass(frozen=True, slots=True)
class System:
    """`twin` is the native system whose tokens it should give, `plain` its own without speculation."""

    name: str
    family: str
    options: dict[str, Any]
    twin: str
    plain: str


def native_systems() -> list[System]:
    return [
        System(f"native {p} {d}", "native", {"precision": p, "drafter": d}, f"native {p} none", f"native {p} none")
        for p in PRECISIONS
        for d in DRAFTERS
    ]


def peer_systems(family: str) -> list[System]:
    if family == "llama":
        twin, names = "native q4 none", {LLAMA: {"lookup": False}, LOOKUPS[LLAMA]: {"lookup": True}}
        return [System(name, family, options, twin, LLAMA) for name, options in names.items()]
    twin = "native fp32 none"  # all on transformers
    return [System(name, family, options, twin, TRANSFORMERS) for name, options in ON_TRANSFORMERS[family].items()]


@dataclass(slots=True)
class Field:
    """The systems that take part and their workers; `settings` are what each family told of itself."""

    workers: dict[str, Worker] = field(default_factory=dict)
    systems: list[System] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, family: str, worker: Worker, systems: Sequence[System], **load: Any) -> None:
        """Load a family; a missing peer is said and left out."""
        try:
            self.settings[family] = worker.ask("load", **load)
        except MissingPeer as missing:
            say(f"skipped: {missing}")
            return
        self.workers[family] = worker
        self.systems += systems

    def answer(self, system: System, ids: Sequence[int], max_tokens: int, eos: Sequence[int]) -> dict[str, Any]:
        reply = self.workers[system.family].ask(
            "generate", token_ids=list(ids), max_tokens=max_tokens, eos_token_ids=list(eos), **system.options
        )
        assert isinstance(reply, dict)
        return reply


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _options(argv)
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    files = resolve(arguments.model)
    tokenizer = load_tokenizer(files)
    chosen = sample(read_prompts(arguments.prompts), arguments.per_category, arguments.seed, arguments.categories)
    prompts = fitting(chosen, tokenizer, MOST_PROMPT_TOKENS)
    prompts = prompts[:2] if arguments.quick else prompts
    warm_up = encode(tokenizer, own_prompts()[0].text)
    max_tokens = QUICK_TOKENS if arguments.quick else MOST_TOKENS
    with ExitStack() as stack:
        takes_part = _field(stack, arguments, files)
        _warm_up(takes_part, warm_up, tokenizer.eos_token_ids, arguments.threads)
        idle = {family: check_idle(worker) for family, worker in takes_part.workers.items()}
        out = stack.enter_context(writer(arguments, NAME))
        for family, settings in takes_part.settings.items():
            out.write("family", family=family, idle_cores=idle[family], **settings)
        answers = Answers(list(_answers(takes_part, prompts, max_tokens, tokenizer.eos_token_ids, out)))
    gains = [(system.name, system.plain) for system in takes_part.systems if system.name != system.plain]
    print(systems_table(answers) + "\n\n" + gains_table(answers, gains))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--prompts", type=Path, required=True, help="JSONL of prompts in Spec-Bench's form")
    options.add_argument("--per-category", type=int, default=3)
    options.add_argument("--categories", nargs="+", default=[], metavar="NAME", help="only these")
    options.add_argument("--model", default="smollm2-135m", help="a model whose weights are one .gguf file")
    options.add_argument("--peer-python", metavar="PATH", help="the interpreter that has the peers (default: this one)")
    return options.parse_args(argv)


def _field(stack: ExitStack, arguments: argparse.Namespace, files: Any) -> Field:
    from benchmarks.checkpoint import dense_checkpoint

    model, threads = arguments.model, arguments.threads
    peer = {"python": arguments.peer_python} if arguments.peer_python else {}
    made = Field()
    made.add(
        "native",
        stack.enter_context(Worker("native")),
        native_systems(),
        model=model,
        precisions=list(PRECISIONS),
        threads=threads,
    )
    for family in ON_TRANSFORMERS:
        if TRANSFORMERS in {system.name for system in made.systems} or family == "hf":  # what they are compared with
            worker = stack.enter_context(Worker(family, **peer))
            made.add(family, worker, peer_systems(family), path=str(dense_checkpoint(files)), threads=threads)
    if files.kind == "gguf":
        made.add(
            "llama",
            stack.enter_context(Worker("llama", **peer)),
            peer_systems("llama"),
            path=str(files.path),
            threads=threads,
            context=MOST_PROMPT_TOKENS + MOST_TOKENS + 16,
        )
    return made


def _warm_up(takes_part: Field, ids: Sequence[int], eos: Sequence[int], threads: int) -> None:
    """Let every system answer once; llama.cpp's with each thread count, of which the faster is kept."""
    for system in takes_part.systems:
        if system.family != "llama":
            takes_part.answer(system, ids, WARM_UP_TOKENS, eos)
            continue
        speeds = {}
        for count in range(1, threads + 1):
            system.options["threads"] = count
            takes_part.answer(system, ids, WARM_UP_TOKENS, eos)
            speeds[count] = takes_part.answer(system, ids, PROBE_TOKENS, eos)["tokens_per_s"] or 0.0
        system.options["threads"] = max(speeds, key=lambda count: speeds[count])
        probed = takes_part.settings["llama"].setdefault("probed_tokens_per_s_by_threads", {})
        probed[system.name] = speeds
        say(f"{system.name}: {system.options['threads']} threads of {speeds}")


def _answers(
    takes_part: Field,
    prompts: Sequence[tuple[Prompt, list[int]]],
    max_tokens: int,
    eos: Sequence[int],
    out: JsonlWriter,
) -> Iterator[dict[str, Any]]:
    """A row for each prompt and system, written as soon as the prompt is done."""
    for number, (prompt, ids) in enumerate(prompts):
        replies = {}
        for system in in_turn(takes_part.systems, number):
            replies[system.name] = takes_part.answer(system, ids, max_tokens, eos)
        say(f"prompt {number + 1} of {len(prompts)} ({prompt.category})")
        tokens = {name: reply.pop("token_ids") for name, reply in replies.items()}
        for system in takes_part.systems:
            mine = tokens[system.name]
            row = {
                "system": system.name,
                "prompt": prompt.name,
                "category": prompt.category,
                "num_prompt_tokens": len(ids),
                "num_output_tokens": len(mine),
                "loop_share": loop_share(mine),
                "same_as_native_plain": mine == tokens[system.twin],
                "same_as_own_plain": mine == tokens[system.plain],
                **replies[system.name],
            }
            out.write("answer", **row)
            yield row


if __name__ == "__main__":
    main()
