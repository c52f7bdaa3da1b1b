"""From what a benchmark is told to its results file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from slimtier.bench.asked import ask, read_tasks
from slimtier.bench.config import BenchConfig
from slimtier.bench.journal import Journal
from slimtier.bench.live import Live
from slimtier.bench.roofline import Progress, roofline_rows
from slimtier.bench.runner import Mode, run_bench, run_row
from slimtier.bench.scaling import check_scaling
from slimtier.bench.scores import without_metrics
from slimtier.bench.tasks import TASKS
from slimtier.files import writing
from slimtier.kernels import core
from slimtier.models.resolve import resolve
from slimtier.models.tokenizer import load_tokenizer
from slimtier.provenance import Provenance


def run(config: BenchConfig, output: Path, mode: Mode, *, skip_bad: bool, note: Callable[[str], None]) -> None:
    """Read the tasks, answer what `output` does not have yet; `note` is told what a reader should know."""
    settings = config.settings
    tasks = read_tasks(settings, note if skip_bad else None)
    files = resolve(settings.model)
    tokenizer = load_tokenizer(files)
    asked, too_long = ask(tasks, settings, tokenizer)
    if mode == "scaling":
        check_scaling(config.systems, settings.batches, len(asked))
    if too_long:
        note(f"{too_long} prompts of more than {settings.max_prompt_tokens} tokens are left out")
    for task, metrics in without_metrics(asked).items():
        note(f"{task}: prompts without a reference give no {', '.join(metrics)}")
    row = run_row(config, {name: TASKS[name].version for name in tasks}, len(asked), mode)
    with Journal(output, row, _provenance(config)) as journal:
        if journal.complete:
            note(f"{output} is complete: nothing to do")
            return
        if journal.answers or journal.batches:
            note(f"{output} has {len(journal.answers) or len(journal.batches)} answers: going on")
        with Live(config.systems[0].name) as live:
            run_bench(config, files, tokenizer, asked, journal, live, mode)


def measure(config: BenchConfig, output: Path, progress: Progress) -> None:
    """Write the roofline of our systems, whole or not at all."""
    with writing(output) as file:
        file.write(json.dumps({"kind": "provenance", **_provenance(config)}) + "\n")
        for kind, row in roofline_rows(config.systems, config.settings, progress):
            file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False) + "\n")


def _provenance(config: BenchConfig) -> dict[str, object]:
    settings = config.settings
    return Provenance.collect(cores=settings.threads, isa=core.isa(), seed=settings.seed).to_dict()
