"""A model as a drafter: a smaller one of the same vocabulary, or the target itself on a route that skips layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from slimtier.drafters.next_token import next_token
from slimtier.sampling import needs_logits
from slimtier.types import Draft, Route, Verdict

if TYPE_CHECKING:
    from slimtier.drafters.base import DraftContext, Reading
    from slimtier.models.base import Cache, Target

_FIRST_CAPACITY = 256  # tokens; doubled as a row outgrows it


@dataclass(slots=True)
class _Row:
    """A sequence's own cache, and the tokens that it holds."""

    cache: Cache
    capacity: int
    held: list[int]


class ModelDrafter:
    """Drafts token by token with `target` (Leviathan et al. 2023), on `route` if given.

    A row is drafted with its own sampling parameters, history and, under gumbel coupling, the noise that the target
    will use. Each sequence has a cache of its own; what a rejection made stale is found by comparing tokens and
    cropped at the next proposal. A row that the model cannot continue, for it is longer than `max_positions` or
    holds a token outside the model's vocabulary, gets an empty draft.

    `vocab_size` is the verifying target's where it differs from the model's: drafts and their probabilities are then
    over that vocabulary, with no probability on ids that the model does not have. The two must share the meaning of
    their ids, see `check_vocabulary`.
    """

    capture: tuple[int, ...] = ()

    def __init__(
        self, target: Target, route: Route | None = None, name: str = "draft_model", vocab_size: int | None = None
    ) -> None:
        self.name = name
        self.target = target
        self.route = route
        self.vocab_size = target.info.vocab_size if vocab_size is None else vocab_size
        self._rows: dict[int, _Row] = {}

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        kept = "" if self.route is None else f" on {'/'.join(self.route.sublayers)}"
        return f"{self.name} {self.target.info.name} {self.target.info.precision}{kept}"

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        return [self._propose_row(*each) for each in zip(contexts, limits, strict=True)]

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """Nothing to do: the next context says which proposed tokens were kept."""

    def read(self, readings: Sequence[Reading]) -> None:
        """Nothing to do: no features are asked for."""

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._rows) if keys is None else keys:
            self._rows.pop(key, None)

    def _propose_row(self, context: DraftContext, limit: int) -> Draft:
        # The last proposed token is not fed back, so it may stand one past the last position.
        count = min(limit, self.target.info.max_positions + 1 - len(context.token_ids))
        if count <= 0:
            return Draft(())
        row = self._row(context.key, len(context.token_ids) + count - 1)
        fresh = self._catch_up(row, context.token_ids)
        if not all(token < self.target.info.vocab_size for token in fresh):
            return Draft(())
        history = list(context.token_ids)
        drawn_from: list[torch.Tensor] = []
        while len(history) < len(context.token_ids) + count:
            hidden = self._feed(row, fresh)
            try:
                token, probs = self._next_token(hidden, history, context)
            except Exception:
                if len(history) == len(context.token_ids):
                    raise
                break  # past the end of the row, it may be, where a constraint allows nothing: the draft ends here
            if probs is not None:
                drawn_from.append(probs)
            history.append(token)
            fresh = [token]
            if token >= self.target.info.vocab_size:
                break
        return Draft(tuple(history[len(context.token_ids) :]), torch.stack(drawn_from) if drawn_from else None)

    def _row(self, key: int, needed: int) -> _Row:
        """The sequence's row, with room for `needed` tokens; an outgrown cache is computed again, twice as large."""
        row = self._rows.get(key)
        if row is None or row.capacity < needed:
            capacity = min(max(_FIRST_CAPACITY, 2 * needed), self.target.info.max_positions)
            row = self._rows[key] = _Row(self.target.begin(1, capacity), capacity, [])
        return row

    def _catch_up(self, row: _Row, token_ids: Sequence[int]) -> list[int]:
        """Crop the row to what it shares with `token_ids`, the last token excepted; the tokens still to be fed."""
        shared = next(
            (i for i, (held, token) in enumerate(zip(row.held, token_ids, strict=False)) if held != token),
            min(len(row.held), len(token_ids)),
        )
        shared = min(shared, len(token_ids) - 1)
        if shared < len(row.held):
            row.cache.crop([shared])
            del row.held[shared:]
        return list(token_ids[shared:])

    def _feed(self, row: _Row, tokens: list[int]) -> torch.Tensor:
        """Append tokens to the row; the hidden state [1, hidden] of the last one."""
        hidden, _ = self.target.forward(tokens, row.cache, [len(tokens)], route=self.route)
        row.held.extend(tokens)
        return hidden[-1:]

    def _next_token(
        self, hidden: torch.Tensor, history: list[int], context: DraftContext
    ) -> tuple[int, torch.Tensor | None]:
        """The next token, and the distribution [vocab_size] it was drawn from (None: it was certain)."""
        if not context.report and not needs_logits(context.sampling) and self.target.info.vocab_size <= self.vocab_size:
            return self.target.head(hidden, "argmax")[0], None
        drawn = next_token(self._fit(self.target.head(hidden)[0]), history, context)
        return drawn.token_id, drawn.probs

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """The model's logits over the verifying target's vocabulary: ids it lacks at -inf, ids too many cut off."""
        missing = self.vocab_size - logits.numel()
        return (
            torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
            if missing > 0
            else logits[: self.vocab_size]
        )
