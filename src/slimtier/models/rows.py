"""What every cache keeps of its rows, whatever holds their keys and values: lengths, and the route that wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.errors import ConfigError, InputError
from slimtier.types import Route

Written = tuple[tuple[int, Route | None], ...]  # (from which token on, under which route); before that by the target


def check_length(route: Route, num_layers: int) -> None:
    """Raises InputError for a route of another number of layers."""
    if len(route.attention) != num_layers or len(route.mlp) != num_layers:
        raise InputError(
            f"the route is for {len(route.attention)} layers and the model has {num_layers}; search it anew"
        )


def normal_route(route: Route | None, num_layers: int) -> Route | None:
    """None for a route on which the whole target runs. Raises InputError as `check_length`."""
    if route is not None:
        check_length(route, num_layers)
    return None if route == Route.full(num_layers) else route


def refuse_precisions(route: Route | None, runtime: str) -> None:
    """For runtimes that can only skip. Raises ConfigError when the route asks for low precision."""
    if route is not None and route.precisions:
        raise ConfigError(
            f"the route uses {' and '.join(sorted(route.precisions))}, which only the native CPU kernels have: "
            f"on {runtime} choose a route that skips layers"
        )


class Rows:
    """The checked half of `Cache`; a runtime adds `_rewind` (if a shorter length is not enough) and `_take`."""

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self._written: list[Written] = [()] * num_rows

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget everything of row r past lengths[r]. Raises InputError when a length is negative or would grow."""
        if len(lengths) != len(self.lengths):
            raise InputError(f"crop got {len(lengths)} lengths for {len(self.lengths)} rows; give one length a row")
        for row, (old, new) in enumerate(zip(self.lengths, lengths, strict=True)):
            if not 0 <= new <= old:
                raise InputError(f"row {row} holds {old} tokens and cannot be cropped to {new}; give 0 to {old}")
        self._rewind(lengths)
        each = zip(self._written, self.lengths, lengths, strict=True)
        self._written = [
            written if new == old else tuple(one for one in written if one[0] < new) for written, old, new in each
        ]
        self.lengths = list(lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Make row i of the new batch what row rows[i] was: rows may be reordered, forked and dropped."""
        count = len(self.lengths)
        for row in rows:
            if not 0 <= row < count:
                raise InputError(f"there is no row {row} among {count}; name rows 0 to {count - 1}")
        self._take(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self._written = [self._written[row] for row in rows]

    def claim(self, lengths: Sequence[int], route: Route | None) -> None:
        """Before a pass appends lengths[r] tokens to row r. A route may go on from what it, or the whole target, or a
        route that it thins wrote; raises InputError where another one wrote what the row ends with."""
        for written, length in zip(self._written, lengths, strict=True):
            last = written[-1][1] if written else None
            if length and last is not None and last != route and (route is None or not route.thins(last)):
                raise InputError("this cache was written under another route; crop it to where that began")

    def adopt(self, rows: Sequence[int]) -> None:
        """Let the whole target go on from what a route wrote to these rows; `verified` stays what it was. Raises
        InputError for a route that skips attention, which leaves no keys and values to go on from."""
        for row in rows:
            last = self._written[row][-1][1] if self._written[row] else None
            if last is None:
                continue
            if not last.fills_caches:
                raise InputError("the route skips attention, so the target has no keys and values to go on from")
            self._written[row] = (*self._written[row], (self.lengths[row], None))

    def append(self, lengths: Sequence[int], route: Route | None) -> None:
        """Count lengths[r] more tokens of row r, written under the route (None: by the whole target)."""
        for row, length in enumerate(lengths):
            written = self._written[row]
            if length and route != (written[-1][1] if written else None):
                self._written[row] = (*written, (self.lengths[row], route))
        self.lengths = [old + new for old, new in zip(self.lengths, lengths, strict=True)]

    @property
    def verified(self) -> list[int]:
        """How many tokens of each row the whole target wrote, before any that a route did."""
        pairs = zip(self._written, self.lengths, strict=True)
        return [written[0][0] if written else length for written, length in pairs]

    def _rewind(self, lengths: Sequence[int]) -> None:
        """Before the lengths change; a store that overwrites what lies past a length has nothing to do."""

    def _take(self, rows: Sequence[int]) -> None:
        """Before the lengths change: move and copy what the rows hold."""
        raise NotImplementedError
