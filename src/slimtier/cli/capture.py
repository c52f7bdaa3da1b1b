"""`slimtier capture`: the target's answers and states, for `slimtier train`."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slimtier.cli import common
from slimtier.errors import ConfigError

_GB = 10**9
_OF_WRITING = ("temperatures", "max_new_tokens", "drawn_turns", "drawn_every", "seed")


def capture(
    prompts: Annotated[Path, typer.Argument(help="JSON Lines: prompt, turns or messages in each row.")],
    out: Annotated[Path, typer.Option(help="The directory to write, or to go on with.")],
    tokens: Annotated[int, typer.Option(help="Answer tokens to keep.")] = 1_000_000,
    disk_budget: Annotated[float, typer.Option(help="The most to write, in GB.")] = 10.0,
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "q8",
    held_out: Annotated[
        Path | None, typer.Option(help="Evaluation data: prompts that share 13 words in a row are dropped.")
    ] = None,
    answers: Annotated[
        str, typer.Option(help="own (the model's), given (in PROMPTS), or a server's: http://localhost:8000/v1")
    ] = "own",
    device: Annotated[str, typer.Option(help="cpu or cuda (there with --precision bf16 or fp32).")] = "cpu",
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Let MODEL answer PROMPTS and keep its states; the size is told first, a signal loses at most one shard.

    A server (vLLM, SGLang, llama.cpp) must serve MODEL; its answers, and given ones, are only read here.
    Settings: layers, top_n, temperatures, max_new_tokens, max_prompt_tokens, max_positions, drawn_turns, drawn_every,
    rows, seed.

    Example: slimtier capture prompts.jsonl --out captured --tokens 200000 --set drawn_every=2
    """
    if not 0 < disk_budget < 1e6 or tokens < 1:
        raise ConfigError("--disk-budget and --tokens must be above 0")
    from slimtier.loading import RunOptions

    given = common.read_pairs(set_)
    _check_answers(answers, given)
    kept = common.prompts_to_answer(prompts, held_out, answers == "given")
    options = RunOptions("auto", precision, threads, device)
    captured = _run(kept, out, tokens, int(disk_budget * _GB), model, options, given, answers)
    for reason, count in captured.dropped.items():
        common.note(f"{count} conversations dropped: {reason}")
    if captured.agreement is not None:
        common.note(f"{captured.agreement:.1%} of the server's greedy tokens are the most probable to {model} too")
    if json:
        typer.echo(json_module.dumps(asdict(captured)))
    else:
        end = "; the disk budget is used up" if captured.full else ""
        common.note(f"{captured.answer_tokens} answer tokens, {captured.bytes / _GB:.2f} GB in {out}{end}")


def _check_answers(answers: str, given: Mapping[str, Any]) -> None:
    if answers not in ("own", "given") and not answers.startswith(("http://", "https://")):
        raise ConfigError(f"--answers {answers}: choose own, given, or an address as http://localhost:8000/v1")
    unused = [key for key in given if key in _OF_WRITING]
    if answers == "given" and unused:
        raise ConfigError(f"--set {unused[0]} is about writing answers: leave it out with --answers given")


def _run(prompts: Any, out: Path, tokens: int, budget: int, model: str, options: Any, given: Any, answers: str) -> Any:
    from slimtier.config import read_dataclass
    from slimtier.loading import load
    from slimtier.models.resolve import resolve
    from slimtier.train import capture as work
    from slimtier.train.answer_settings import AnswerSettings, with_layers
    from slimtier.train.served import Server

    files = resolve(model)
    with common.patience(f"loading {model}"):
        loaded = load(files, options)
    writer: Any = answers if answers in ("own", "given") else Server(answers, loaded.tokenizer)
    settings = with_layers(read_dataclass(AnswerSettings, given, "--set"), loaded.target.info.num_layers)
    planned = work.plan(settings, loaded.target.info.hidden_size, tokens, budget)
    common.note(f"about {planned.bytes / _GB:.2f} GB for {tokens} answer tokens")
    with common.bar("capturing", "answer tokens", tokens) as advance:
        return work.capture(loaded, prompts, out, settings, planned, advance, writer)
