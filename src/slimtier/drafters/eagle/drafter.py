"""EAGLE-3 in the loop: what is kept of each row, and what is proposed for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from slimtier.drafters.eagle.runtime import Runtime, Stop, Stretch
from slimtier.drafters.next_token import Drawn, next_token
from slimtier.sampling import needs_logits
from slimtier.types import Draft, Verdict

if TYPE_CHECKING:
    from slimtier.drafters.base import DraftContext, Reading
    from slimtier.drafters.eagle.runtime import Chain

NONE = Draft(())
_FIRST_CAPACITY = 256  # slots; doubled as a row outgrows it
_MOST_WAITING = 128  # slots whose features are kept for later; a prompt's others are run at once


@dataclass(slots=True)
class Row:
    """A sequence: `held` slots with keys and values, then those whose features wait. Slot t holds the features of
    position base + t and the token after it. `base` is above 0 only where the features before it never came: rotary
    positions are relative, so such a row is one whose text begins there."""

    base: int
    held: int = 0
    store: Any = None
    capacity: int = 0
    tokens: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)  # [n, streams · hidden] each, n as many in all as tokens

    @property
    def slots(self) -> int:
        return self.held + len(self.tokens)

    @property
    def end(self) -> int:
        """The position after the last one whose features came."""
        return self.base + self.slots

    def crop(self, end: int) -> None:
        """Forget the features of positions from `end` on."""
        self.held = min(self.held, max(end - self.base, 0))
        waiting = max(end - self.base - self.held, 0)
        if waiting < len(self.tokens):
            self.features = [torch.cat(self.features)[:waiting]] if waiting else []
            del self.tokens[waiting:]

    def take(self, count: int) -> tuple[list[int], torch.Tensor]:
        """The first `count` waiting slots, which wait no longer: tokens, features."""
        features = torch.cat(self.features) if len(self.features) > 1 else self.features[0]
        tokens, self.tokens = self.tokens[:count], self.tokens[count:]
        self.features = [features[count:]] if self.tokens else []
        self.held += count
        return tokens, features[:count]


@dataclass(frozen=True, slots=True)
class Asked:
    """A row that is drafted for: its place in the batch, its new slots, how many tokens at most, when to stop."""

    place: int
    context: DraftContext
    stretch: Stretch
    steps: int
    stop: Stop


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft and the confidence in each of its tokens (none where the stop does not look at it)."""

    draft: Draft = NONE
    confidences: tuple[float, ...] = ()


class EagleDrafter:
    """EAGLE-3 (Li et al. 2025): one decoder layer on the target's features at `capture`, and a head.

    A draft ends before a token whose probability is under `confidence` (0: never). Above temperature 0 the most
    probable token's decides, which is known before the draw. Rows at temperature 0 without penalties or processors
    are drafted by the head's argmax alone; the others draw as `next_token` does and report the distribution.

    Features wait until a draft is asked for, and then run as one stretch with the slot that the draft begins at.
    `which` tells the draft from others.
    """

    def __init__(
        self,
        runtime: Runtime,
        capture: tuple[int, ...],
        confidence: float = 0.0,
        name: str = "eagle3",
        which: Callable[[], str] = str,
    ) -> None:
        self.name = name
        self.capture = capture
        self.runtime = runtime
        self.confidence = confidence
        self._which = which
        self._rows: dict[int, Row] = {}

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        stop = f" from {self.confidence}" if self.confidence else ""
        return f"{self.name} {self._which()}{stop}"

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        return [one.draft for one in self.draft(contexts, limits, [Stop(self.confidence)] * len(contexts))]

    def draft(self, contexts: Sequence[DraftContext], limits: Sequence[int], stops: Sequence[Stop]) -> list[Drafted]:
        """Drafts of at most limits[i] tokens that continue contexts[i] and end early as stops[i] says."""
        rows = zip(range(len(contexts)), contexts, limits, stops, strict=True)
        asked = [one for row in rows if (one := self._ask(*row)) is not None]
        found = [Drafted()] * len(contexts)
        drawn = [one for one in asked if _draws(one)]
        for one, draft in zip(drawn, self._draw(drawn), strict=True):
            found[one.place] = draft
        for stop in dict.fromkeys(stops):
            certain = [one for one in asked if one.stop == stop and not _draws(one)]
            for one, chain in zip(certain, self._chain(certain, stop), strict=True):
                found[one.place] = Drafted(Draft(chain.token_ids), chain.confidences)
        return found

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        for key, verdict in zip(keys, verdicts, strict=True):
            if key in self._rows and verdict.features is not None:
                row = self._rows[key]
                row.crop(row.end - len(verdict.lagged))
                self._append(row, (*verdict.lagged, *verdict.token_ids), verdict.features)

    def read(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            if reading.source is not None:
                self._rows[reading.key] = self._copy(reading.source, reading.start)
            row = self._rows.get(reading.key)
            if row is not None:
                row.crop(reading.start)
            if row is None or row.end != reading.start:
                row = self._rows[reading.key] = Row(reading.start)
            if reading.features is not None:
                after = reading.start + 1
                self._append(row, reading.token_ids[after : after + len(reading.features)], reading.features)
        rows = [self._rows[key] for key in dict.fromkeys(reading.key for reading in readings)]
        self._run([row for row in rows if len(row.tokens) > _MOST_WAITING])

    def waiting(self, key: int) -> int:
        """How many slots of a row the next draft has to run before its own."""
        row = self._rows.get(key)
        return 0 if row is None else len(row.tokens)

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._rows) if keys is None else keys:
            self._rows.pop(key, None)

    def _append(self, row: Row, tokens: Sequence[int], features: torch.Tensor) -> None:
        row.tokens.extend(tokens)
        row.features.append(features)
        if row.slots > self.runtime.max_positions:  # the row is taken up again as one that begins here
            row.tokens.clear()
            row.features.clear()

    def _copy(self, key: int, end: int) -> Row:
        """A row like that of `key` before position `end`; all but the last waiting slot are run first, for both."""
        row = self._rows.get(key)
        if row is None:
            return Row(end)
        self._run([row] if len(row.tokens) > 1 else [])
        copied = Row(row.base, row.held, None, 0, list(row.tokens), list(row.features))
        copied.crop(end)
        if copied.held:
            copied.capacity = row.capacity
            copied.store = self.runtime.grow(row.store, copied.held, row.capacity)
        return copied

    def _run(self, rows: Sequence[Row]) -> None:
        """Run all waiting slots but the last, which a draft will begin at."""
        if rows:
            self.runtime.forward([self._stretch(row, len(row.tokens) - 1, 0) for row in rows], fed_back=False)

    def _stretch(self, row: Row, count: int, more: int) -> Stretch:
        """The first `count` waiting slots as ones to run, with room for `more` slots after them."""
        needed = row.held + count + more
        if needed > row.capacity:
            row.capacity = min(max(_FIRST_CAPACITY, 2 * needed), self.runtime.max_positions)
            row.store = self.runtime.grow(row.store, row.held, row.capacity)
        start = row.held
        return Stretch(row.store, start, *row.take(count))

    def _ask(self, place: int, context: DraftContext, limit: int, stop: Stop) -> Asked | None:
        """None where there is nothing to draft: no place left, or no features since the last draft."""
        row, end = self._rows.get(context.key), len(context.token_ids) - 1
        if row is None or row.end != end:  # features from here on are taken up
            row = self._rows[context.key] = Row(end)
        steps = min(limit, self.runtime.max_positions + 1 - row.slots)  # the last token drafted is not fed
        if steps <= 0 or not row.tokens:
            return None
        return Asked(place, context, self._stretch(row, len(row.tokens), steps - 1), steps, stop)

    def _chain(self, asked: Sequence[Asked], stop: Stop) -> list[Chain]:
        if not asked:
            return []
        return self.runtime.chain([one.stretch for one in asked], [one.steps for one in asked], stop)

    def _draw(self, asked: Sequence[Asked]) -> list[Drafted]:
        """Token by token, all rows in one step."""
        drawn: list[list[Drawn]] = [[] for _ in asked]
        live = list(range(len(asked)))
        fed, fed_back = [one.stretch for one in asked], False
        while fed:
            hidden, state = self.runtime.forward(fed, fed_back)
            logits = self.runtime.logits(hidden)
            going = [place for place, row in enumerate(live) if _draw_one(asked[row], drawn[row], logits[place])]
            live = [live[place] for place in going]
            fed = [_fed(asked[row], drawn[row], state[place, None]) for row, place in zip(live, going, strict=True)]
            fed_back = True
        return [_drafted(one.stop, tokens) for one, tokens in zip(asked, drawn, strict=True)]


def _draws(asked: Asked) -> bool:
    """Whether the head's argmax alone does not do."""
    return asked.context.report or needs_logits(asked.context.sampling)


def _draw_one(asked: Asked, drawn: list[Drawn], logits: torch.Tensor) -> bool:
    """Append the row's next token from logits [vocab]; whether another is to follow."""
    history = [*asked.context.token_ids, *(one.token_id for one in drawn)]
    try:
        token = next_token(logits, history, asked.context, confident=asked.stop.looks)
    except Exception:
        if not drawn:
            raise
        return False  # past the end of the row, it may be, where a constraint allows nothing: the draft ends here
    if token.confidence < asked.stop.confidence:
        return False
    drawn.append(token)
    return len(drawn) < asked.steps and math.prod(one.confidence for one in drawn) >= asked.stop.go_on


def _fed(asked: Asked, drawn: Sequence[Drawn], state: torch.Tensor) -> Stretch:
    """The slot of the last token drawn, with the state [1, hidden] of the slot before."""
    stretch = asked.stretch
    start = stretch.start + len(stretch.tokens) + len(drawn) - 1
    return Stretch(stretch.store, start, [drawn[-1].token_id], state)


def _drafted(stop: Stop, drawn: Sequence[Drawn]) -> Drafted:
    probs = [one.probs for one in drawn if one.probs is not None]
    draft = Draft(tuple(one.token_id for one in drawn), torch.stack(probs) if probs else None)
    return Drafted(draft, tuple(one.confidence for one in drawn) if stop.looks else ())
