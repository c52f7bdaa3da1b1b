"""Runs a benchmark: every prompt is answered by all systems in turn, each time another one begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from slimtier.bench.asked import Asked, encode, own_items
from slimtier.bench.config import BenchConfig
from slimtier.bench.contestants import Contestants, first_line, in_turn
from slimtier.bench.draws import check_draws
from slimtier.bench.exactness import exactness_rows
from slimtier.bench.journal import Journal, Key, key_of
from slimtier.bench.result_rows import SCHEMA
from slimtier.bench.scaling import batch_rows, schedule
from slimtier.bench.scores import score_of, total_scores
from slimtier.bench.statistics import loop_share
from slimtier.bench.systems import System
from slimtier.errors import SlimtierError
from slimtier.models.resolve import ModelFiles
from slimtier.provenance import without_place
from slimtier.text import TextStream

SAMPLES = 1  # prompts of each task whose answers are kept token by token
Mode = Literal["compare", "exactness", "scaling"]


class Watcher(Protocol):
    """Who looks on."""

    def loading(self, system: System) -> None: ...
    def loaded(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    def answered(self, rows: Sequence[Mapping[str, Any]], done: int, total: int) -> None: ...
    def judging(self, done: int, total: int) -> None: ...
    def batch(self, row: Mapping[str, Any], done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A system in the turn of a prompt; the baseline has a second one, the control."""

    system: System
    control: bool = False

    def key(self, asked: Asked, repeat: int) -> Key:
        return self.system.name, self.control, asked.task, asked.item.name, repeat


def run_row(config: BenchConfig, versions: Mapping[str, int], prompts: int, mode: Mode = "compare") -> dict[str, Any]:
    """What a results file says of its run; a file of another run differs in it."""
    return {
        "schema": SCHEMA,
        "mode": mode,
        "model": without_place(config.settings.model),
        "config": config.to_dict(),
        "tasks": dict(versions),
        "baseline": config.systems[0].name,
        "prompts": prompts,
    }


def run_bench(
    config: BenchConfig,
    files: ModelFiles,
    tokenizer: Any,
    asked: Sequence[Asked],
    journal: Journal,
    watcher: Watcher,
    mode: Mode = "compare",
) -> None:
    """Do what `journal` does not have yet. compare: every prompt is answered by every system; exactness: then it is
    said where answers part, and why; scaling: batches of prompts are answered.

    Raises SlimtierError when no system can take part.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        contestants = Contestants(config, files, stack)
        warm_up = encode(tokenizer, own_items()[0].turns[0])
        for system in config.systems:
            watcher.loading(system)
            contestants.enter(system, warm_up, tokenizer.eos_token_ids)
        for row in contestants.told:
            journal.write("system", **row)
        watcher.loaded(contestants.told)
        if not contestants.ready:
            raise SlimtierError(f"no system can take part: {contestants.told[0]['reason']}")
        run = _Run(config, tokenizer, asked, journal, contestants, watcher)
        if mode == "scaling":
            run.answer_batches()
        else:
            run.answer_all()
        if mode == "exactness":
            run.check_all()
        elif mode == "compare":
            run.judge_all()
    for row in total_scores(asked, journal.answers):
        journal.write("score", **row)
    journal.write("end", seconds=time.perf_counter() - started)


@dataclass(slots=True)
class _Run:
    config: BenchConfig
    tokenizer: Any
    asked: Sequence[Asked]
    journal: Journal
    contestants: Contestants
    watcher: Watcher

    def answer_all(self) -> None:
        repeats = self.config.settings.repeats
        turns = [(repeat, asked) for repeat in range(repeats) for asked in self.asked]
        samples = _samples(self.asked)
        for number, (repeat, asked) in enumerate(turns):
            ready = self.contestants.ready
            entries = [Entry(system) for system in ready] + [Entry(ready[0], control=True)]
            missing = [entry for entry in entries if entry.key(asked, repeat) not in self.journal.answers]
            if missing:
                order = [entry for entry in in_turn(entries, number) if entry in missing]
                rows = self._answers(order, asked, repeat, asked in samples and repeat == 0)
                self.watcher.answered(rows, number + 1, len(turns))

    def _answers(self, order: Sequence[Entry], asked: Asked, repeat: int, sample: bool) -> list[dict[str, Any]]:
        """The rows of one prompt, written when all systems have answered."""
        rows = []
        for entry in order:
            who = {"system": entry.system.name, "task": asked.task, "item": asked.item.name, "repeat": repeat}
            try:
                most = self.config.settings.max_new_tokens
                reply = self.contestants.answer(entry.system, asked.token_ids, most, self.tokenizer.eos_token_ids)
            except RuntimeError as error:
                self.journal.write("failure", **who, error=first_line(error))
                continue
            rows.append({**who, "control": entry.control, **self._row(asked, reply, sample and not entry.control)})
        self.journal.answers |= {key_of(row): row for row in rows}
        baseline = self.journal.answers.get(Entry(self.contestants.ready[0]).key(asked, repeat))
        for row in rows:
            row["same_as_baseline"] = None if baseline is None else row["token_ids"] == baseline["token_ids"]
            self.journal.write("answer", **row)
        return rows

    def _row(self, asked: Asked, reply: Mapping[str, Any], sample: bool) -> dict[str, Any]:
        tokens, speed = reply["token_ids"], reply["tokens_per_s"]
        pieces = pieces_of(self.tokenizer, tokens)
        text = "".join(pieces)
        shown = {"pieces": pieces, "prompt": asked.item.turns[0]} if sample else {}
        if not sample:
            reply = {key: value for key, value in reply.items() if key != "deciders"}
        return {
            "category": asked.item.category,
            "num_prompt_tokens": len(asked.token_ids),
            "num_output_tokens": len(tokens),
            "text": text,
            "time_per_output_token_s": 1 / speed if speed else None,
            "loop_share": loop_share(tokens),
            "scores": score_of(asked, text),
            **shown,
            **reply,
        }

    def answer_batches(self) -> None:
        settings = self.config.settings
        eos, batches = self.tokenizer.eos_token_ids, settings.batches
        total = len(batches) * settings.repeats * len(self.contestants.ready)
        for row in batch_rows(self.contestants, self.asked, eos, batches, self.journal.batches):
            self.journal.write("batch", **row)
            self.journal.batches[row["system"], row["batch"], row["repeat"]] = row
            self.watcher.batch(row, len(self.journal.batches), total)
        table = schedule(self.contestants.ready, list(self.journal.batches.values()))
        if table is not None:
            self.journal.write("schedule", num_speculative_tokens_per_batch_size=table)

    def check_all(self) -> None:
        """Where answers part, and whether draws follow the target."""
        for kind, found in exactness_rows(self.contestants, self.asked, self.journal.answers):
            self.journal.write(kind, **found)
        for check in check_draws(self.config.settings.seed):
            self.journal.write("draws", **asdict(check))

    def judge_all(self) -> None:
        """The likelihood of every answer, once for all systems that gave it."""
        given: dict[tuple[str, str], dict[tuple[int, ...], dict[str, None]]] = {}
        for (system, control, task, item, _), row in self.journal.answers.items():
            if not control and row["token_ids"]:
                given.setdefault((task, item), {}).setdefault(tuple(row["token_ids"]), {})[system] = None
        for number, asked in enumerate(self.asked):
            for tokens, systems in given.get((asked.task, asked.item.name), {}).items():
                if (asked.task, asked.item.name, tuple(systems)) in self.journal.likelihoods:
                    continue
                found = self.contestants.log_likelihood(asked.token_ids, tokens)
                if found is None:
                    return
                row = {"log_likelihood": found / len(tokens), "tokens": len(tokens)}
                self.journal.write("likelihood", task=asked.task, item=asked.item.name, systems=list(systems), **row)
            self.watcher.judging(number + 1, len(self.asked))


def pieces_of(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    """The text of each token; a character that several tokens make stands with the last of them."""
    stream = TextStream(tokenizer)
    pieces = []
    for token in token_ids:
        stream.push(token)
        pieces.append(stream.take())
    stream.finish()
    if pieces:
        pieces[-1] += stream.take()
    return pieces


def _samples(asked: Sequence[Asked]) -> list[Asked]:
    """The first prompts of each task."""
    kept: dict[str, list[Asked]] = {}
    for one in asked:
        mine = kept.setdefault(one.task, [])
        if len(mine) < SAMPLES:
            mine.append(one)
    return [one for mine in kept.values() for one in mine]
