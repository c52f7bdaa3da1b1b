"""How near the kernels are to what the machine can do: memory bandwidth, and forwards of T tokens.

    python -m benchmarks.kernel_limits --peer-python /path/to/peers/bin/python

Bandwidth: the sum over 256 MB on all threads by torch, in every round beside the steps (the better of two reads), since
a shared machine's memory is not the same from one second to the next; and once before and after, by torch and by a
compiled loop, for the best that was ever seen. A step's fraction of the limit is taken round by round.

A forward of T tokens is what verifying T - 1 drafted tokens costs: all layers and the argmax of every row, after a
prompt of 64 tokens whose cache is cropped back. llama.cpp evaluates T tokens of the same file with every row's logits,
at the best thread count for each T. Precisions and peer take turns within each round; all numbers are medians over the
rounds.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common import JsonlWriter, check_idle, parser, say, writer
from benchmarks.compiled import CompiledProgram
from slimtier.bench.roofline import READ_BYTES, memory_reader
from slimtier.bench.statistics import markdown_table, median
from slimtier.bench.worker import MissingPeer, Worker

NAME = "kernel_limits"
PRECISIONS = ("fp32", "q8", "q4")
SIZES = (1, 2, 4, 6, 8, 16, 32)
PROMPT_TOKENS, ROUNDS, QUICK_ROUNDS = 64, 40, 3
READ_ROUNDS = 15
PEER_REPEATS = 3  # evaluations a round; the first has the cache to fill


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--peer-python", metavar="PATH", help="the interpreter that has llama-cpp-python")
    arguments = options.parse_args(argv)
    from slimtier.models.native import load_native
    from slimtier.models.resolve import resolve

    files = resolve(arguments.model)
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    targets = {name: load_native(files, precision=name, threads=arguments.threads) for name in PRECISIONS}
    with ExitStack() as stack:
        peer = _llama(stack, arguments, files)
        loop = stack.enter_context(CompiledProgram(["benchmarks/read_bandwidth.cpp"]))
        out = stack.enter_context(writer(arguments, NAME))
        reads = read_bandwidth(loop, arguments)
        rows = measure(targets, peer, rounds, arguments)
        for reader, rates in read_bandwidth(loop, arguments).items():
            reads[reader] += rates
        report(targets, rows, reads, out)


def read_bandwidth(loop: CompiledProgram, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """GB/s of each round, by who reads; the first round, which fills the page tables, is left out."""
    import torch

    rounds = 1 + (QUICK_ROUNDS if arguments.quick else READ_ROUNDS)
    torch.set_num_threads(arguments.threads)
    values = torch.ones(READ_BYTES // 4)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - started)
    torch.set_num_threads(1)
    found = {"torch": seconds}
    if loop.available:
        found["compiled loop"] = loop.run(arguments.threads, READ_BYTES, rounds)
    return {reader: [READ_BYTES / 1e9 / each for each in times[1:]] for reader, times in found.items()}


def _llama(stack: ExitStack, arguments: argparse.Namespace, files: Any) -> Worker | None:
    if files.kind != "gguf":
        say("skipped: llama.cpp needs a .gguf file")
        return None
    worker = stack.enter_context(
        Worker("llama", **({"python": arguments.peer_python} if arguments.peer_python else {}))
    )
    try:
        worker.ask("load", path=str(files.path), threads=arguments.threads, context=PROMPT_TOKENS + max(SIZES) + 16)
        worker.ask("evaluate", prompt=[1, 2], token_ids=[3], threads=arguments.threads, repeats=1)
    except MissingPeer as missing:
        say(f"skipped: {missing}")
        return None
    check_idle(worker)
    return worker


class Bench:
    """A target with a prompt in its cache, and the clock and counters of one forward."""

    def __init__(self, target: Any, prompt: Sequence[int]) -> None:
        self.target = target
        self.cache = target.begin(1, len(prompt) + max(SIZES))
        target.forward(prompt, self.cache, [len(prompt)])
        self.length = len(prompt)

    def step(self, tokens: Sequence[int]) -> dict[str, float]:
        """Seconds of a forward with argmax, and of it those inside and outside the linear layers (head included)."""
        self.target.decoder.reset_timing()
        started = time.perf_counter()
        hidden, _ = self.target.forward(tokens, self.cache, [len(tokens)])
        self.target.head(hidden, "argmax")
        total = time.perf_counter() - started
        self.cache.crop([self.length])
        timing = self.target.decoder.timing()
        linear = (timing["linear"] + timing["head"]) / 1e9
        return {"seconds": total, "attention": timing["attention"] / 1e9, "outside": total - linear}


def measure(
    targets: dict[str, Any], peer: Worker | None, rounds: int, arguments: argparse.Namespace
) -> dict[tuple[str, int], dict[str, list[float]]]:
    """For (system, T) the values of every round. A step that follows another precision's finds the processor's caches
    cold, as a decoding step does not: so each is taken twice, and the second counts."""

    rng = random.Random(arguments.seed)
    vocabulary = min(target.info.vocab_size for target in targets.values())
    prompt = [rng.randrange(vocabulary) for _ in range(PROMPT_TOKENS)]
    benches = {name: Bench(target, prompt) for name, target in targets.items()}
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    read = memory_reader(arguments.threads)
    for number in range(rounds):
        for size in SIZES:
            tokens = [rng.randrange(vocabulary) for _ in range(size)]
            for name, bench in benches.items():
                limit = 0.0
                if size == 1:
                    limit = READ_BYTES / 1e9 / read()
                    time.sleep(0.02)  # until torch's threads sleep
                bench.step(tokens)
                for key, value in bench.step(tokens).items():
                    found[name, size][key].append(value)
                if limit:
                    rate = bench.target.info.weight_bytes / 1e9 / found[name, size]["seconds"][-1]
                    found[name, size]["fraction"].append(rate / limit)
            for threads in range(1, arguments.threads + 1) if peer else ():
                seconds = _peer_seconds(peer, prompt, tokens, threads)
                found[f"llama.cpp, {threads} threads", size]["seconds"] += seconds
        if (number + 1) % 10 == 0:
            say(f"round {number + 1} of {rounds}")
    return found


def _peer_seconds(peer: Worker | None, prompt: list[int], tokens: list[int], threads: int) -> list[float]:
    """Of each evaluation but the first."""
    assert peer is not None
    asked = {"prompt": prompt, "token_ids": tokens, "threads": threads, "repeats": PEER_REPEATS}
    return list(peer.ask("evaluate", **asked)["seconds"][1:])


def report(
    targets: dict[str, Any],
    rows: dict[tuple[str, int], dict[str, list[float]]],
    reads: dict[str, list[float]],
    out: JsonlWriter,
) -> None:
    """Write a row for every system and T; print the tables."""
    medians = {key: {name: median(values) or 0.0 for name, values in columns.items()} for key, columns in rows.items()}
    for (system, size), values in medians.items():
        out.write("forward", system=system, num_tokens=size, rounds=len(rows[system, size]["seconds"]), **values)
    for reader, rates in reads.items():
        out.write("bandwidth", reader=reader, bytes=READ_BYTES, best_gb_per_s=max(rates), median_gb_per_s=median(rates))
        print(f"Read bandwidth, {reader}: best {max(rates):.1f}, median {median(rates):.1f} GB/s\n")
    limit = max(max(rates) for rates in reads.values())
    plain = []
    for name, target in targets.items():
        step = medians[name, 1]
        rate = target.info.weight_bytes / 1e9 / step["seconds"]
        share = step["outside"] / step["seconds"]
        beside = step["fraction"]
        plain.append([name, target.info.weight_bytes / 1e6, 1e3 * step["seconds"], rate, beside, rate / limit, share])
        out.write(
            "step", precision=name, gb_per_s=rate, fraction_of_read_beside=beside, fraction_of_best_read=rate / limit,
            share_outside_linears=share,
        )  # fmt: skip
    headers = [
        "precision", "weights, MB", "step, ms", "GB/s", "of the read beside it", "of the best read",
        "share outside the linears",
    ]  # fmt: skip
    print(markdown_table(headers, plain) + "\n")
    systems = dict.fromkeys(system for system, _ in medians)
    forwards = []
    for system in systems:
        times = [1e3 * medians[system, size]["seconds"] for size in SIZES]
        forwards.append([system, *times])
        forwards.append([f"{system}, ÷ T = 1", *(one / times[0] for one in times)])
    peers = [system for system in systems if system.startswith("llama.cpp")]
    if peers:
        best = [min(medians[system, size]["seconds"] for system in peers) for size in SIZES]
        forwards.append(
            [
                "llama.cpp's best ÷ q4",
                *(a / medians["q4", size]["seconds"] for a, size in zip(best, SIZES, strict=True)),
            ]
        )
    print(markdown_table(["forward of T tokens, ms", *(f"T = {size}" for size in SIZES)], forwards))


if __name__ == "__main__":
    main()
