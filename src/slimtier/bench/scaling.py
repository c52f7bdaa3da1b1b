"""Throughput by batch size: who is fastest where, and up to which batch speculation pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slimtier.bench.asked import Asked
from slimtier.bench.contestants import Contestants, first_line, in_turn
from slimtier.bench.statistics import speeds
from slimtier.bench.systems import OURS, System
from slimtier.errors import ConfigError, InputError

BatchKey = tuple[str, int, int]  # system, batch, repeat
Schedule = list[list[int]]


def check_scaling(systems: Sequence[System], batches: Sequence[int], prompts: int) -> None:
    """Raises ConfigError for a system that answers one prompt at a time, InputError for too few prompts."""
    for system in systems:
        if not system.kind.batches:
            raise ConfigError(f"{system.name} answers one prompt at a time: leave it out of --scaling")
    if prompts < max(batches):
        raise InputError(f"a batch of {max(batches)} needs as many prompts, and there are {prompts}: raise items")


def batch_rows(
    contestants: Contestants,
    asked: Sequence[Asked],
    eos: Sequence[int],
    batches: Sequence[int],
    done: Iterable[BatchKey],
) -> Iterator[dict[str, Any]]:
    """A row for each batch size, repeat and system that is not `done`, the systems taking turns."""
    settings, known = contestants.config.settings, set(done)
    for turn, (repeat, batch) in enumerate((repeat, batch) for repeat in range(settings.repeats) for batch in batches):
        for system in in_turn(contestants.ready, turn):
            key = (system.name, batch, repeat)
            if key in known:
                continue
            row: dict[str, Any] = dict(zip(("system", "batch", "repeat"), key, strict=True))
            try:
                told = contestants.answer_batch(system, [one.token_ids for one in asked[:batch]], eos)
            except RuntimeError as error:
                yield {**row, "error": first_line(error)}
                continue
            accepted = told["accepted_per_position"]
            yield {
                **row,
                "tokens_per_s": told["tokens_per_s"],
                "num_output_tokens": sum(map(len, told["token_ids"])),
                "num_drafts": told["num_drafts"],
                "num_accepted_tokens_per_pos": accepted,
                "mean_acceptance_length": 1 + sum(accepted) / told["num_drafts"] if told["num_drafts"] else 1.0,
                "peak_memory_bytes": told.get("peak_memory_bytes"),
            }


def schedule(systems: Sequence[System], rows: Sequence[Mapping[str, Any]]) -> Schedule | None:
    """[from, to, num_speculative_tokens] for each range of batch sizes, the fastest of our systems of one model that
    differ in that number alone (0: plain decoding); what vLLM calls num_speculative_tokens_per_batch_size. None when
    nothing was drafted to a number of tokens.

    A measured batch stands for those from it up to the next measured one.
    """
    known = speeds(rows)
    lengths = {system.name: _length(system) for system in systems if system.type == OURS and system.name in known}
    usable = {name: length for name, length in lengths.items() if length is not None}
    if not any(usable.values()):
        return None
    batches = sorted({batch for name in usable for batch in known[name]})
    best = [usable[max(usable, key=lambda name: known[name].get(batch, 0.0))] for batch in batches]
    table: Schedule = []
    for number, (batch, length) in enumerate(zip(batches, best, strict=True)):
        last = batches[number + 1] - 1 if number + 1 < len(batches) else batch
        if table and table[-1][2] == length:
            table[-1][1] = last
        else:
            table.append([batch, last, length])
    return table


def _length(system: System) -> int | None:
    """How many tokens the system drafts at a time; None when that is not fixed."""
    if system.answering()["drafter"] == "none":
        return 0
    return system.answering()["num_speculative_tokens"] or None
