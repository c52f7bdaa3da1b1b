"""`slimtier capture`: the target answers prompts, and its states are kept as it writes, for training a drafter."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slimtier.errors import ConfigError, InputError
from slimtier.files import write_whole
from slimtier.loading import Loaded
from slimtier.provenance import Provenance
from slimtier.train.answer_settings import AnswerSettings, layers_of
from slimtier.train.answered import Answered
from slimtier.train.answers import AnswerWriter, Script
from slimtier.train.normal_equations import NormalEquations
from slimtier.train.prompts import Conversation, PromptFile
from slimtier.train.reader import TranscriptReader
from slimtier.train.served import Server, alike, served
from slimtier.train.shard_writer import ShardWriter, answer_bytes, position_bytes
from slimtier.train.shards import FORMAT, MANIFEST, STATISTICS
from slimtier.train.transcript import Room, recite
from slimtier.train.turns import Dialogue

Answers = Literal["own", "given"] | Server
POSITIONS_PER_ANSWER_TOKEN = 2.2  # prompts included; a guess for the size told before the start


@dataclass(frozen=True, slots=True)
class Plan:
    """What a capture will take: answer tokens wanted, bytes expected, and the most it may use."""

    tokens: int
    bytes: int
    budget: int


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture holds in the end; `dropped`: conversations not kept, by reason; `full`: the budget ended it;
    `agreement`: the share of a server's greedy tokens that are the most probable here too, if some were read."""

    answer_tokens: int
    bytes: int
    rows: int
    dropped: dict[str, int]
    full: bool
    agreement: float | None = None


def plan(settings: AnswerSettings, hidden_size: int, tokens: int, budget: int) -> Plan:
    """The size of a capture of `tokens` answer tokens. Raises ConfigError when `budget` bytes do not hold it."""
    per_token = POSITIONS_PER_ANSWER_TOKEN * position_bytes(hidden_size * len(settings.layers))
    size = int(tokens * (per_token + answer_bytes(settings.top_n)))
    if size > budget:
        fitting = int(tokens * budget / size)
        raise ConfigError(
            f"{tokens} answer tokens take about {size / 1e9:.1f} GB and the disk budget is {budget / 1e9:.1f} GB: "
            f"ask for {fitting} tokens or raise --disk-budget"
        )
    return Plan(tokens, size, budget)


def capture(
    loaded: Loaded,
    prompts: PromptFile,
    directory: Path,
    settings: AnswerSettings,
    planned: Plan,
    report: Callable[[int, int], None] = lambda tokens, wanted: None,
    answers: Answers = "own",
) -> Captured:
    """Answer conversations until `planned.tokens` answer tokens are kept, or the budget is used; go on from what
    `directory` already holds. `report(answer tokens, wanted)` is called as it goes. `answers`: the target's, which it
    writes here; those that the conversations came with, each once; or a server's."""
    info = loaded.target.info
    layers_of(settings.layers, info.num_layers)
    directory.mkdir(parents=True, exist_ok=True)
    described = describe_capture(loaded, prompts, settings)
    described["answers"] = answers if isinstance(answers, str) else "server"
    _agree(directory / MANIFEST, described)
    shards = ShardWriter(directory)
    sums = NormalEquations(loaded.target.weight("embedding").cpu(), info.hidden_size * len(settings.layers))
    sums.load(directory / STATISTICS)
    writer, rows = _written(loaded, prompts, settings, answers, shards.done())
    full = False
    if shards.answer_tokens < planned.tokens:
        for row in rows:
            sums.add(row)
            if shards.add(row):
                sums.save(directory / STATISTICS)
                full = shards.bytes >= planned.budget
            report(shards.answer_tokens, planned.tokens)
            if full or shards.answer_tokens >= planned.tokens:
                break
        shards.flush()
        sums.save(directory / STATISTICS)
    if not shards.lines:
        raise InputError(f"no conversation could be used: {dict(writer.dropped) or 'the prompts are empty'}")
    count = sum(line["rows"] for line in shards.lines)
    return Captured(shards.answer_tokens, shards.bytes, count, dict(writer.dropped), full, writer.agreement)


def _written(
    loaded: Loaded,
    prompts: PromptFile,
    settings: AnswerSettings,
    answers: Answers,
    done: Set[int],
) -> tuple[AnswerWriter | TranscriptReader, Iterator[Answered]]:
    """Who counts what is dropped, and the rows as they come."""
    target, conversations = loaded.target, prompts.conversations
    scripts = scripts_of(loaded.tokenizer, conversations, settings, done=done)
    if answers == "own":
        writer = AnswerWriter(target, settings, target.info.eos_token_ids)
        return writer, writer.write(patient(scripts, writer, len(conversations)))
    reader = TranscriptReader(target, settings)
    if answers == "given":
        room = Room(settings.max_prompt_tokens, 1, reader.capacity)
        return reader, reader.read(recite(loaded.tokenizer, conversations, done, room))
    room = Room(settings.max_prompt_tokens, settings.max_new_tokens, reader.capacity)
    from_server = served(answers, patient(scripts, reader, len(conversations)), settings, room)
    return reader, alike(reader.read(from_server), reader, answers)


def scripts_of(
    tokenizer: Any,
    conversations: Sequence[Conversation],
    settings: AnswerSettings,
    first: int = 0,
    last: int | None = None,
    done: Set[int] = frozenset(),
) -> Iterator[tuple[int, Script]]:
    """Conversation after conversation, over and over, each time at another temperature and with other draws; every
    `drawn_every`-th is the target's from its first word. By number, from `first` to before `last`, without `done`."""
    own = Conversation("drawn", ())
    for number in itertools.count(first) if last is None else range(first, last):
        if number in done:
            continue
        drawn = settings.drawn_turns[number % len(settings.drawn_turns)]
        if settings.drawn_every and number % settings.drawn_every == 0:
            yield number, Dialogue(tokenizer, own, 1 + drawn)
        else:
            place = (number + number // len(conversations)) % len(conversations)
            yield number, Dialogue(tokenizer, conversations[place], drawn)


def patient(
    scripts: Iterator[tuple[int, Script]], writer: AnswerWriter | TranscriptReader, count: int
) -> Iterator[tuple[int, Script]]:
    """`scripts`, unless all prompts were tried and not one conversation came of them."""
    for given, script in enumerate(scripts):
        if not writer.finished and given >= 2 * count + writer.settings.rows:
            return
        yield script


def describe_capture(loaded: Loaded, prompts: PromptFile, settings: AnswerSettings) -> dict[str, Any]:
    """All that decides what is written, and by what: a capture's manifest."""
    info = loaded.target.info
    spoken = json.dumps([_said(conversation) for conversation in prompts.conversations]).encode()
    backend = getattr(loaded.tokenizer, "backend", None)
    return {
        "format": FORMAT,
        "model": info.name,
        "precision": info.precision,
        "tokenizer_sha256": hashlib.sha256(backend.to_str().encode()).hexdigest() if backend else None,
        "vocab_size": info.vocab_size,
        "hidden_size": info.hidden_size,
        "num_layers": info.num_layers,
        "prompts_sha256": hashlib.sha256(spoken).hexdigest(),
        **asdict(settings),
        "provenance": Provenance.collect(seed=settings.seed).to_dict(),
    }


def _said(conversation: Conversation) -> dict[str, Any]:
    """What its digest is made of: one without answers has that which it had before there were any."""
    return {key: value for key, value in asdict(conversation).items() if key != "answers" or value}


def _agree(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or check that the capture that is there was made the same way."""
    manifest = json.loads(json.dumps(manifest))
    if not path.is_file():
        write_whole(path, (json.dumps(manifest, indent=1) + "\n").encode())
        return
    held = {"answers": "own", **json.loads(path.read_text(encoding="utf-8"))}
    for key in manifest:
        if key not in ("provenance", "rows") and held.get(key) != manifest[key]:
            raise ConfigError(
                f"{path.parent} was captured with {key} {held.get(key)!r}, not {manifest[key]!r}: "
                "use the same settings to go on, or another directory"
            )
