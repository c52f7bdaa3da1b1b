"""Results files: one or more, read strictly, as one frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtier.bench.result_rows import (
    Answer,
    Batch,
    Draws,
    End,
    Exactness,
    Failure,
    Likelihood,
    Run,
    Schedule,
    Score,
    System,
    parse_row,
)
from slimtier.errors import InputError
from slimtier.jsonl import numbered_rows


@dataclass(frozen=True, slots=True)
class Source:
    """A file and what it says of itself. `seconds`: of a complete run, else None. `torn`: its last line was cut off,
    and is left out."""

    name: str
    run: Run
    provenances: tuple[Mapping[str, Any], ...]
    seconds: float | None
    torn: bool

    @property
    def file(self) -> str:
        """The name without its place."""
        return Path(self.name).name


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that was measured. `systems` are in the order of the files, each once; a system that some file could
    run is ready."""

    sources: tuple[Source, ...]
    systems: tuple[System, ...]
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    likelihoods: tuple[Likelihood, ...]
    scores: tuple[Score, ...]
    exactness: tuple[Exactness, ...] = ()
    draws: tuple[Draws, ...] = ()
    batches: tuple[Batch, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    @property
    def run(self) -> Run:
        """That of the first file, with which the others agree in model, baseline and tasks."""
        return self.sources[0].run


def read_results(paths: Sequence[Path | str]) -> Results:
    """The rows of all files. A last line that was cut off, as that of a running benchmark may be, is left out.

    Raises InputError, naming file and line, for what cannot be read, and for files that do not belong together: those
    of different models, baselines, versions of a task, or with two systems of one name.
    """
    if not paths:
        raise InputError("no results file is named: give one or more .jsonl files of slimtier bench")
    read = [_of_rows(_numbered(Path(path)), str(path), number) for number, path in enumerate(paths)]
    return _together(read)


def from_rows(rows: Iterable[Mapping[str, Any]], name: str = "the rows") -> Results:
    """The same from rows in memory, such as those of a benchmark that runs. Raises InputError."""
    return _of_rows(enumerate(rows, 1), name, 0)


_SEVERAL = (Answer, Failure, Likelihood, Score, Exactness, Draws, Batch, Schedule)


class _Torn:
    """What stands in the place of a last line that was cut off."""


def _numbered(path: Path) -> Iterator[tuple[int, Any]]:
    """numbered_rows, but a last line without a line end that is not JSON comes as _Torn."""
    bad: list[str] = []
    for number, row in numbered_rows(path, bad.append):
        if bad:
            raise InputError(bad[0])
        yield number, row
    if not bad:
        return
    if len(bad) > 1 or path.suffix == ".gz" or path.read_bytes().endswith(b"\n"):
        raise InputError(bad[0])
    yield 0, _Torn()


def _of_rows(rows: Iterable[tuple[int, Any]], name: str, source: int) -> Results:
    kinds: dict[type, list[Any]] = {}
    provenances, torn = [], False
    seen: dict[tuple[Any, ...], int] = {}
    for number, given in rows:
        if isinstance(given, _Torn):
            torn = True
            continue
        try:
            row = parse_row(given, source)
            if isinstance(row, Answer):
                _once(row, number, seen)
        except ValueError as error:
            raise InputError(f"line {number} of {name} {error}{_mend(str(error))}") from None
        if isinstance(row, Mapping):
            provenances += [row] if row["kind"] == "provenance" else []
        else:
            kinds.setdefault(type(row), []).append(row)
    if Run not in kinds:
        raise InputError(f"{name} has no run row: give a results file that slimtier bench wrote")
    seconds = kinds[End][-1].seconds if End in kinds else None
    run = _agreed([(name, run) for run in kinds[Run]])
    return _checked(
        Results(
            (Source(name, run, tuple(provenances), seconds, torn),),
            _last_of_each(kinds.get(System, [])),
            *(tuple(kinds.get(kind, ())) for kind in _SEVERAL),
        )
    )


def _mend(words: str) -> str:
    return "" if ":" in words else ": mend or remove the line"


def _once(answer: Answer, number: int, seen: dict[tuple[Any, ...], int]) -> None:
    place = answer.place
    key = (answer.system, answer.control, place.task, place.item, place.repeat)
    if key in seen:
        raise ValueError(f"answers what line {seen[key]} answers ({answer.system}, {place.task}, {place.item})")
    seen[key] = number


def _last_of_each(systems: Iterable[System]) -> tuple[System, ...]:
    """A run that goes on says again what became of its systems."""
    return tuple({system.name: system for system in systems}.values())


def _checked(results: Results) -> Results:
    """The same. Raises InputError for an answer of a system that has no row."""
    known = {system.name for system in results.systems}
    named: Sequence[Answer | Failure | Score] = (*results.answers, *results.failures, *results.scores)
    for row in named:
        if row.system not in known:
            raise InputError(
                f"{results.sources[0].name} has rows of {row.system!r} but no system row of that name: "
                "give the whole file"
            )
    return results


def _together(read: Sequence[Results]) -> Results:
    sources = tuple(source for one in read for source in one.sources)
    _agreed([(source.name, source.run) for source in sources])
    systems: dict[str, tuple[System, str]] = {}
    for one in read:
        for system in one.systems:
            before, where = systems.get(system.name, (system, one.sources[0].name))
            if (before.type, before.options) != (system.type, system.options):
                raise InputError(
                    f"{where} and {one.sources[0].name} call different systems {system.name!r}: report them apart, or "
                    "give one another name"
                )
            if system.name not in systems or before.state != "ready":
                systems[system.name] = system, one.sources[0].name
    return Results(
        sources,
        tuple(system for system, _ in systems.values()),
        tuple(row for one in read for row in one.answers),
        tuple(row for one in read for row in one.failures),
        tuple(row for one in read for row in one.likelihoods),
        tuple(row for one in read for row in one.scores),
        tuple(row for one in read for row in one.exactness),
        tuple(row for one in read for row in one.draws),
        tuple(row for one in read for row in one.batches),
        tuple(row for one in read for row in one.schedules),
    )


def _agreed(runs: Sequence[tuple[str, Run]]) -> Run:
    """The last run. Raises InputError where two differ in what makes numbers comparable."""
    (first_name, first), *others = runs
    for name, run in others:
        for what in ("model", "baseline"):
            ours, theirs = getattr(first, what), getattr(run, what)
            if ours != theirs:
                raise InputError(
                    f"{first_name} has the {what} {ours!r} and {name} {theirs!r}: report them apart, one command each"
                )
        for task in first.tasks.keys() & run.tasks.keys():
            if first.tasks[task] != run.tasks[task]:
                raise InputError(
                    f"{first_name} has version {first.tasks[task]} of the task {task} and {name} version "
                    f"{run.tasks[task]}: report them apart, or run the older again"
                )
    return runs[-1][1]
