"""What the verbs share: their options, the settings after --set, and how a model is brought up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimtier.config import json_or_text
from slimtier.errors import ConfigError, InputError
from slimtier.models.aliases import DEFAULT_MODEL as DEFAULT_MODEL

if TYPE_CHECKING:
    from slimtier.audit import Audit
    from slimtier.engine import Engine
    from slimtier.result import Result
    from slimtier.train.prompts import PromptFile

Model = Annotated[str, typer.Option(help="An alias (see `slimtier models`), a directory, a .gguf file or a hub id.")]
Drafter = Annotated[str, typer.Option(help="auto, eagle3, ngram, draft_model, layer_skip or none.")]
Verifier = Annotated[str, typer.Option(help="lossless; lenient and cascade change the output and must be asked for.")]
Runtime = Annotated[str, typer.Option(help="auto, native or hf (any transformers model).")]
Precision = Annotated[str, typer.Option(help="auto (the file's own), fp32, bf16, q8 or q4.")]
Tiers = Annotated[
    str | None,
    typer.Option(help="A slim verifier between drafter and target: exact, observe; lossy: paper, calibrated."),
]
Route = Annotated[
    str | None, typer.Option(help="The slim verifier: none, q4, q8, skip:RATIO, or what `slimtier route` wrote.")
]
Lossless = Annotated[bool, typer.Option("--lossless", help="Refuse whatever may change the output.")]
MaxNewTokens = Annotated[int, typer.Option(help="The longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most probable token.")]
Seed = Annotated[int | None, typer.Option(help="Of the random numbers; a new one each time if left out.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; all cores if left out.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, e.g. top_p=0.9 or num_speculative_tokens=5."),
]

ENGINE_SETTINGS = ("device", "num_speculative_tokens")
FLAGS = ("max_new_tokens", "temperature", "seed")
PATIENCE_S = 2.0  # before a wait is explained


@dataclass(frozen=True, slots=True)
class Settings:
    """What --set gave: for the engine, for the request, and whether the prompt goes in as it stands."""

    engine: Mapping[str, Any]
    request: Mapping[str, Any]
    raw: bool


def read_settings(pairs: Sequence[str] | None, flags: Mapping[str, Any], extra: Sequence[str] = ("raw",)) -> Settings:
    """Sort the KEY=VALUE pairs; a value is JSON if it can be read as such, else text. `flags` are the request's.

    Raises ConfigError for what is no such pair, for an unknown key (naming the nearest), and for a key with a flag.
    """
    from slimtier.options import OPTIONS, read_options, refuse_unknown
    from slimtier.registry import SETTINGS

    given = read_pairs(pairs)
    engine_keys, request_keys = (
        (*ENGINE_SETTINGS, *SETTINGS),
        [key for key in OPTIONS if key not in ("n", "processors")],
    )
    refuse_unknown(given, (*engine_keys, *request_keys, *extra), "setting")
    for key in FLAGS:
        if key in given:
            raise ConfigError(f"{key} has an option of its own: use --{key.replace('_', '-')}")
    request = {**flags, **{key: value for key, value in given.items() if key in request_keys}}
    read_options(request)
    raw = given.get("raw", False)
    if not isinstance(raw, bool):
        raise ConfigError(f"raw is {raw!r}: give true or false")
    return Settings({key: value for key, value in given.items() if key in engine_keys}, request, raw)


def read_pairs(pairs: Sequence[str] | None) -> dict[str, Any]:
    """What --set gave, as a mapping. Raises ConfigError for what is no KEY=VALUE, and for a key given twice."""
    given: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE: write for example --set top_p=0.9")
        if key in given:
            raise ConfigError(f"--set {key} is given twice: keep one")
        given[key] = json_or_text(value)
    return given


def open_engine(model: str, settings: Settings, *, lossless: bool = False, **choices: Any) -> Engine:
    """Check the choices, find the model's files (fetched if need be), load them; a long wait is explained on stderr.
    `lossless`: raise ConfigError for choices that may change the output."""
    from slimtier.engine import Engine
    from slimtier.models.resolve import resolve
    from slimtier.registry import check_settings
    from slimtier.tiers import LOSSY

    names = {key: value for key, value in settings.engine.items() if key not in ENGINE_SETTINGS}
    check_settings(choices["drafter"], choices["verifier"], names, choices["tiers"], choices["route"])
    lossy = choices["tiers"] if choices["tiers"] in LOSSY else choices["verifier"]
    if lossless and lossy != "lossless":
        raise ConfigError(f"{lossy} is lossy and --lossless is asked for: leave one of them out")
    files = resolve(model)
    with patience(f"loading {model}"):
        engine = Engine.from_pretrained(files, **choices, **settings.engine)
    if lossy == "calibrated":
        note_bound(choices["route"], settings.request["max_new_tokens"])
    return engine


def note_bound(route: str, max_new_tokens: int) -> None:
    """Say where answers may be longer than those that a calibrated gate's bound is about."""
    from slimtier.models.route_file import RouteFile

    about = RouteFile.read(Path(route).expanduser()).calibrated
    if max_new_tokens > about["max_new_tokens"]:
        note(
            f"the gate's bound is about answers of at most {about['max_new_tokens']} tokens (and prompts of at most "
            f"{about['max_prompt_tokens']}), not {max_new_tokens}: calibrate with --set max_new_tokens={max_new_tokens}"
        )


@contextmanager
def patience(message: str) -> Iterator[None]:
    """Show `message` on a terminal's stderr when the block takes longer than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Timer

    from rich.console import Console

    status = Console(stderr=True).status(message)
    timer = Timer(PATIENCE_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextmanager
def bar(message: str, unit: str = "", count: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that moves a bar with its rate on a terminal's stderr, shown once it takes a while;
    `count`: the total, where the calls' second number says something else."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(show_speed=True), MofNCompleteColumn())
    shown = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = shown.add_task(f"{message} ({unit})" if unit else message, total=count)
    begun = monotonic()

    def move(done: int, total: int) -> None:
        if monotonic() - begun > PATIENCE_S:
            shown.start()
        shown.update(task, completed=done, total=count or total)

    try:
        yield move
    finally:
        shown.stop()


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Collects Ctrl-C instead of raising, so that a reply stops between two rounds and the cache stays good.
    A second one raises: the first round of a long prompt takes its time."""
    seen: list[int] = []

    def collect(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, collect)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def read_stdin() -> str:
    """All of standard input, without its last line end."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text: convert it first") from None


def prompts_to_answer(path: Path, held_out: Path | None, given: bool = False) -> PromptFile:
    """The prompts of a JSON Lines file, `given`: with their answers, without those like the evaluation data in
    `held_out`; says what is dropped."""
    from slimtier.train.overlap import read_held_out, without
    from slimtier.train.prompts import read_prompts

    kept = read_prompts(path, given)
    if held_out is not None:
        kept = without(kept, read_held_out(held_out))
    for reason, count in kept.dropped.items():
        note(f"{count} prompts not used: {reason}")
    if kept.answers_left_out:
        note(f"{kept.answers_left_out} answers in {path} left out: the model writes its own")
    return kept


def measured_json(found: Mapping[str, Any]) -> str:
    """What was measured as one JSON object, with its provenance."""
    import json

    from slimtier.provenance import Provenance

    return json.dumps({**found, "provenance": Provenance.collect().to_dict()}, ensure_ascii=False)


def summary(result: Result) -> str:
    """One line on how the answer was made."""
    stats, run = result.stats, result.run
    speed = "-" if stats.tokens_per_s is None else f"{stats.tokens_per_s:.1f}"
    parts = [
        f"{stats.num_output_tokens} tokens",
        f"{speed} tok/s",
        f"mean acceptance length {stats.mean_acceptance_length:.2f}",
        f"drafter {run.drafter}",
        f"precision {run.precision}",
        *([f"tiers {run.tiers}"] if run.tiers and run.lossless else []),
    ]
    return " · ".join(parts if run.lossless else [*parts, f"lossy ({run.verifier})"])


def audited(engine: Engine, asked: Any, result: Result, request: Mapping[str, Any]) -> Audit:
    """What the target says of a lossy answer to the prompt `asked`, teacher-forced."""
    from slimtier.audit import audit
    from slimtier.options import read_options
    from slimtier.prompts import encode_prompt, split_prompts

    prompt = split_prompts(asked)[0][0]
    ids = encode_prompt(prompt, engine.tokenizer, engine.target.info.vocab_size)
    with patience("auditing the answer"):
        return audit(engine.target, ids, result.token_ids, read_options(request).sampling)


def note(line: str) -> None:
    """A line beside the answer: on stderr, dim on a terminal."""
    sys.stdout.flush()
    typer.secho(line, err=True, dim=True)
