"""The rows of a results file as values, each checked when it is read; docs/benchmarks.md has the fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
SPLIT = ("draft_layer", "draft_head", "draft", "verify", "sampling", "other")  # parts of time_split_s, in order
POSITIONS = "num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class Run:
    """What was to be measured."""

    model: str
    config: Mapping[str, Any]
    tasks: Mapping[str, Any]
    baseline: str
    prompts: int

    @property
    def temperature(self) -> float:
        return float(self.config.get("temperature", 0.0))


@dataclass(frozen=True, slots=True)
class System:
    """`lossless`: whether its output is the target's by its rule, None where it does not say. `idle_cores`: CPU
    seconds a second that its process used while nobody asked it anything."""

    name: str
    type: str
    options: Mapping[str, Any]
    state: str
    reason: str | None
    lossless: bool | None
    versions: Mapping[str, Any]
    settings: Mapping[str, Any]
    load_s: float | None
    idle_cores: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Which request an answer is to. `source`: the file's number among those read, so that what ran together is
    compared."""

    source: int
    task: str
    item: str
    category: str
    repeat: int

    @property
    def prompt(self) -> tuple[str, str]:
        """Task and item: the same in every file and repeat."""
        return self.task, self.item


@dataclass(frozen=True, slots=True)
class Output:
    """`pieces` and `deciders`: one a token, () where a system does not tell. `prompt` likewise may be None."""

    token_ids: tuple[int, ...]
    text: str
    pieces: tuple[str, ...]
    deciders: tuple[str, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    loop_share: float | None
    same_as_baseline: bool | None
    prompt: str | None


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, tokens a second; None where all came in one block or the system does not tell."""

    tokens_per_s: float | None
    end_to_end_tokens_per_s: float | None
    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    time_split_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    system: str
    control: bool
    place: Place
    output: Output
    times: Times
    stats: Mapping[str, Any]
    peak_memory_bytes: float | None
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Failure:
    system: str
    task: str
    item: str
    repeat: int
    error: str


@dataclass(frozen=True, slots=True)
class Likelihood:
    """`log_likelihood`: the mean log probability a token of the answer that these systems gave."""

    task: str
    item: str
    systems: tuple[str, ...]
    log_likelihood: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Score:
    system: str
    task: str
    metrics: Mapping[str, float]
    floor: Mapping[str, float]
    items: int


@dataclass(frozen=True, slots=True)
class Exactness:
    """Of the answers of a system compared with those of a reference: how many are the same, and why others part."""

    system: str
    reference: str
    compared: int
    identical: int
    near_ties: int
    defects: int
    lossy: int


@dataclass(frozen=True, slots=True)
class Draws:
    """Whether sampled output follows the target's distribution: a chi-square test, for a drafter that is accepted
    always, sometimes or hardly ever."""

    accepts: str
    draws: int
    acceptance_rate: float
    p_value: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Batch:
    """`batch` prompts answered at once; the speed is that of the whole call, None where it failed."""

    system: str
    batch: int
    repeat: int
    tokens_per_s: float | None
    mean_acceptance_length: float | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """[from, to, num_speculative_tokens] for each range of batch sizes."""

    table: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class End:
    seconds: float


Told = Run | System | Answer | Failure | Likelihood | Score | Exactness | Draws | Batch | Schedule | End
Row = Told | Mapping[str, Any]
_AS_THEY_STAND = ("provenance", "divergence")


class Fields:
    """The fields of one row, read by the kind of value that is wanted. Each method raises ValueError, saying what is
    wrong, and takes null for a missing field; fields that are not asked for are let be."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def text(self, name: str) -> str:
        return str(self._required(name, self._optional(name, str, "a text")))

    def maybe_text(self, name: str) -> str | None:
        value: str | None = self._optional(name, str, "a text")
        return value

    def whole(self, name: str) -> int:
        return int(self._required(name, self._optional(name, int, "a whole number")))

    def number(self, name: str) -> float:
        return float(self._required(name, self.maybe_number(name)))

    def maybe_number(self, name: str) -> float | None:
        return None if self._row.get(name) is None else _number(self._row[name], name)

    def maybe_flag(self, name: str) -> bool | None:
        value: bool | None = self._optional(name, bool, "true or false")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """{} where it is missing."""
        return dict(self._optional(name, dict, "an object") or {})

    def numbers(self, name: str) -> dict[str, float]:
        """{} where it is missing; entries that are null are left out."""
        given = self.mapping(name)
        return {key: _number(value, f"{name}.{key}") for key, value in given.items() if value is not None}

    def texts(self, name: str) -> tuple[str, ...]:
        return self._several(name, str, "texts")

    def ids(self, name: str) -> tuple[int, ...]:
        self._required(name, self._row.get(name))
        return self._several(name, int, "whole numbers")

    def table(self, name: str) -> list[list[int]]:
        """Rows of three whole numbers."""
        given = self._required(name, self._optional(name, list, "a list"))
        for row in given:
            if not isinstance(row, list) or len(row) != 3 or not all(_is(value, int) for value in row):
                raise ValueError(f"has {name} with {row!r}, not three whole numbers")
        return list(given)

    def _several(self, name: str, kind: type, words: str) -> tuple[Any, ...]:
        given = self._optional(name, list, "a list") or []
        if not all(_is(value, kind) for value in given):
            raise ValueError(f"has {name} that are not all {words}")
        return tuple(given)

    def _optional(self, name: str, kind: type, words: str) -> Any:
        value = self._row.get(name)
        if value is not None and not _is(value, kind):
            raise ValueError(f"has {name} {value!r}, not {words}")
        return value

    def _required(self, name: str, value: Any) -> Any:
        if value is None:
            raise ValueError(f"has no {name}")
        return value


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _number(value: Any, name: str) -> float:
    if not (_is(value, int) or _is(value, float)) or not math.isfinite(value):
        raise ValueError(f"has {name} {value!r}, not a finite number")
    return float(value)


def parse_row(row: Any, source: int = 0) -> Row:
    """The value of a row; kinds that no number here is made of come as they stand, the provenance among them.

    Raises ValueError, saying what is wrong with the row.
    """
    if not isinstance(row, Mapping):
        raise ValueError("is not a JSON object")
    kind = row.get("kind")
    if kind in _AS_THEY_STAND:
        return row
    if kind not in _READERS:
        raise ValueError(f"has kind {kind!r}, which is none of {', '.join((*_AS_THEY_STAND, *_READERS))}")
    return _READERS[kind](Fields(row), source)


def _run(fields: Fields, source: int) -> Run:
    schema = fields.whole("schema")
    if schema != SCHEMA:
        mend = "run the benchmark again" if schema < SCHEMA else "upgrade slimtier (pip install -U slimtier)"
        raise ValueError(f"has schema {schema}, and this slimtier reads schema {SCHEMA}: {mend}")
    run = Run(
        model=fields.text("model"),
        config=fields.mapping("config"),
        tasks=fields.mapping("tasks"),
        baseline=fields.text("baseline"),
        prompts=fields.whole("prompts"),
    )
    Fields(run.config).maybe_number("temperature")
    return run


def _system(fields: Fields, source: int) -> System:
    state = fields.text("state")
    if state not in ("ready", "skipped", "failed"):
        raise ValueError(f"has state {state!r}, which is none of ready, skipped, failed")
    return System(
        name=fields.text("system"),
        type=fields.text("type"),
        options=fields.mapping("options"),
        state=state,
        reason=fields.maybe_text("reason"),
        lossless=fields.maybe_flag("lossless"),
        versions=fields.mapping("versions"),
        settings=fields.mapping("settings"),
        load_s=fields.maybe_number("load_s"),
        idle_cores=fields.maybe_number("idle_cores"),
    )


def _answer(fields: Fields, source: int) -> Answer:
    return Answer(
        system=fields.text("system"),
        control=bool(fields.maybe_flag("control")),
        place=Place(source, fields.text("task"), fields.text("item"), fields.text("category"), fields.whole("repeat")),
        output=_output(fields),
        times=Times(
            tokens_per_s=fields.maybe_number("tokens_per_s"),
            end_to_end_tokens_per_s=fields.maybe_number("end_to_end_tokens_per_s"),
            time_to_first_token_s=fields.maybe_number("time_to_first_token_s"),
            time_per_output_token_s=fields.maybe_number("time_per_output_token_s"),
            time_split_s=_split(fields.numbers("time_split_s")),
        ),
        stats=_stats(fields.mapping("stats")),
        peak_memory_bytes=fields.maybe_number("peak_memory_bytes"),
        scores=fields.numbers("scores"),
    )


def _split(seconds: dict[str, float]) -> dict[str, float]:
    for part in seconds:
        if part not in SPLIT:
            raise ValueError(f"has time_split_s.{part}, which is none of {', '.join(SPLIT)}")
    return seconds


def _output(fields: Fields) -> Output:
    text, pieces, deciders = fields.text("text"), fields.texts("pieces"), fields.texts("deciders")
    if pieces and "".join(pieces) != text:
        raise ValueError("has pieces that joined are not its text")
    if deciders and len(pieces) != len(deciders):
        raise ValueError(f"has {len(pieces)} pieces and {len(deciders)} deciders: one of each a token is needed")
    return Output(
        token_ids=fields.ids("token_ids"),
        text=text,
        pieces=pieces,
        deciders=deciders,
        num_prompt_tokens=fields.whole("num_prompt_tokens"),
        num_output_tokens=fields.whole("num_output_tokens"),
        loop_share=fields.maybe_number("loop_share"),
        same_as_baseline=fields.maybe_flag("same_as_baseline"),
        prompt=fields.maybe_text("prompt"),
    )


def _stats(given: dict[str, Any]) -> dict[str, Any]:
    fields = Fields(given)
    for name in given:
        if name != POSITIONS and isinstance(given[name], int | float):
            fields.maybe_number(name)
    return {**given, POSITIONS: fields.ids(POSITIONS)} if given.get(POSITIONS) is not None else given


def _failure(fields: Fields, source: int) -> Failure:
    system, task, item = (fields.text(name) for name in ("system", "task", "item"))
    return Failure(system, task, item, fields.whole("repeat"), fields.text("error"))


def _likelihood(fields: Fields, source: int) -> Likelihood:
    return Likelihood(
        task=fields.text("task"),
        item=fields.text("item"),
        systems=fields.texts("systems"),
        log_likelihood=fields.number("log_likelihood"),
        tokens=fields.whole("tokens"),
    )


def _score(fields: Fields, source: int) -> Score:
    return Score(
        system=fields.text("system"),
        task=fields.text("task"),
        metrics=fields.numbers("metrics"),
        floor=fields.numbers("floor"),
        items=fields.whole("items"),
    )


def _exactness(fields: Fields, source: int) -> Exactness:
    counts = ("compared", "identical", "near_ties", "defects", "lossy")
    return Exactness(fields.text("system"), fields.text("reference"), *(fields.whole(name) for name in counts))


def _draws(fields: Fields, source: int) -> Draws:
    rate, p_value = fields.number("acceptance_rate"), fields.number("p_value")
    return Draws(fields.text("accepts"), fields.whole("draws"), rate, p_value, fields.text("verdict"))


def _batch(fields: Fields, source: int) -> Batch:
    return Batch(
        system=fields.text("system"),
        batch=fields.whole("batch"),
        repeat=fields.whole("repeat"),
        tokens_per_s=fields.maybe_number("tokens_per_s"),
        mean_acceptance_length=fields.maybe_number("mean_acceptance_length"),
    )


def _schedule(fields: Fields, source: int) -> Schedule:
    return Schedule(
        tuple((first, last, count) for first, last, count in fields.table("num_speculative_tokens_per_batch_size"))
    )


def _end(fields: Fields, source: int) -> End:
    return End(fields.number("seconds"))


_READERS: dict[Any, Callable[[Fields, int], Row]] = {
    "run": _run,
    "system": _system,
    "answer": _answer,
    "failure": _failure,
    "likelihood": _likelihood,
    "score": _score,
    "exactness": _exactness,
    "draws": _draws,
    "batch": _batch,
    "schedule": _schedule,
    "end": _end,
}
