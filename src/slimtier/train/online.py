"""Training on what the target writes at that moment: nothing is kept on disk, each answer is learned from once.

The first conversations, by number, are held out; those after them are written while the steps before are trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.train.answer_settings import AnswerSettings, with_layers
from slimtier.train.answered import Answered
from slimtier.train.answers import AnswerWriter, Script
from slimtier.train.batches import Split
from slimtier.train.capture import describe_capture, patient, scripts_of
from slimtier.train.normal_equations import NormalEquations
from slimtier.train.prompts import PromptFile
from slimtier.train.shards import CaptureInfo, Row, RowPlace, digest_of, info_of, runs

_OPENING_LABELS = 32768  # written before the first step: what weights are started from


@dataclass(frozen=True, slots=True)
class Online:
    """The target, and what it is to answer."""

    loaded: Loaded
    prompts: PromptFile


class Window:
    """The rows that were written last, as `shards.Capture` has them. `identity`: the hash of all that decides what is
    written."""

    def __init__(self, info: CaptureInfo, identity: str, equations: NormalEquations) -> None:
        self.info, self.identity = info, (identity,)
        self.dropped: Mapping[str, int] = {}
        self._equations = equations
        self._rows: dict[int, Row] = {}

    def sums(self) -> Mapping[str, torch.Tensor]:
        """The normal equations so far."""
        return self._equations.sums

    def read(self, place: RowPlace) -> Row:
        return self._rows[place.shard]

    def read_tokens(self, place: RowPlace) -> torch.Tensor:
        return self._rows[place.shard].token_ids

    def read_labels(self, place: RowPlace) -> tuple[torch.Tensor, torch.Tensor]:
        row = self._rows[place.shard]
        return row.top_ids, row.top_logprobs

    def add(self, answered: Answered) -> RowPlace:
        """Keep a row; its place names it by its number."""
        segments = runs(answered.answer)
        token_ids = answered.token_ids.long()
        self._rows[answered.number] = Row(
            token_ids, answered.features, answered.top_ids.long(), answered.top_logprobs.float(), segments
        )
        return RowPlace(answered.number, 0, len(token_ids), 0, segments, digest_of(answered.token_ids))

    def learn(self, answered: Answered) -> None:
        """Take the row into the normal equations."""
        self._equations.add(answered)

    def forget(self, places: Sequence[RowPlace]) -> None:
        """These will not be read again."""
        for place in places:
            self._rows.pop(place.shard, None)


class Stream:
    """Batches as they are written; asked for in order, from the first step of this process on. `position`: the number
    of the conversation that a resumed run goes on with."""

    def __init__(
        self, rows: Iterator[Answered], window: Window, batch_tokens: int, held_out: Sequence[RowPlace]
    ) -> None:
        self.rows, self.window, self.batch_tokens = rows, window, batch_tokens
        self.position = 0
        self._held = {place.digest for place in held_out}
        self._waiting: list[RowPlace] = []
        self._last: list[RowPlace] = []

    def open(self, progress: Callable[[int, int], None]) -> list[RowPlace]:
        """The rows that weights are started from; they are in the first batches too."""
        labels = 0
        while labels < _OPENING_LABELS:
            answered = next(self.rows, None)
            if answered is None:
                raise InputError(
                    f"no conversation could be used: {dict(self.window.dropped) or 'the prompts are empty'}"
                )
            self.window.learn(answered)
            labels += self._take(answered)
            progress(min(labels, _OPENING_LABELS), _OPENING_LABELS)
        return list(self._waiting)

    def at(self, step: int) -> list[RowPlace]:
        """The rows of the next step."""
        self.window.forget(self._last)
        self._last = []
        labels = 0
        while labels < self.batch_tokens:
            if not self._waiting:
                self._take(next(self.rows))
                continue
            self._last.append(self._waiting.pop(0))
            labels += self._last[-1].labels
        return list(self._last)

    def steps(self, epochs: float) -> int:
        """There are no epochs."""
        raise ConfigError("there is no end to what is written online: give the run's length as optimisation.steps")

    def _take(self, answered: Answered) -> int:
        self.position = max(self.position, answered.number + 1)
        place = self.window.add(answered)
        if place.labels < 1 or place.digest in self._held:
            self.window.forget([place])
            return 0
        self._waiting.append(place)
        return place.labels


def open_stream(
    online: Online,
    settings: AnswerSettings,
    batch_tokens: int,
    validation_rows: int,
    position: int,
    progress: Callable[[int, int], None],
) -> tuple[Window, Split, Stream]:
    """Write the rows that are validated on, and (`position` 0: a run that begins) those that weights start from."""
    loaded, conversations = online.loaded, online.prompts.conversations
    settings = with_layers(settings, loaded.target.info.num_layers)
    described = describe_capture(loaded, online.prompts, settings)
    shape = {key: value for key, value in described.items() if key not in ("provenance", "rows")}
    identity = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()
    target = loaded.target
    width = target.info.hidden_size * len(settings.layers)
    window = Window(info_of(described), identity, NormalEquations(target.weight("embedding").cpu(), width))

    def written(first: int, last: int | None) -> Iterator[Answered]:
        writer = AnswerWriter(target, settings, target.info.eos_token_ids)
        window.dropped = writer.dropped
        scripts: Iterator[tuple[int, Script]] = scripts_of(loaded.tokenizer, conversations, settings, first, last)
        yield from writer.write(patient(scripts, writer, len(conversations)))

    held = [place for place in map(window.add, written(0, validation_rows)) if place.labels > 0]
    stream = Stream(written(max(position, validation_rows), None), window, batch_tokens, held)
    rows = stream.open(progress) if position == 0 else []
    stream.position = max(stream.position, position)
    return window, Split(tuple(rows), tuple(held), tuple(held)), stream
