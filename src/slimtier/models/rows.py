"""What every cache keeps of its rows, whatever holds their keys and values: lengths, and the route that wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from slimtier.errors import InputError
from slimtier.types import Route


class Rows:
    """The checked half of `Cache`; a runtime adds `_rewind` (if a shorter length is not enough) and `_take`."""

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.route: Route | None = None

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget everything of row r past lengths[r]. Raises InputError when a length is negative or would grow."""
        if len(lengths) != len(self.lengths):
            raise InputError(f"crop got {len(lengths)} lengths for {len(self.lengths)} rows; give one length a row")
        for row, (old, new) in enumerate(zip(self.lengths, lengths, strict=True)):
            if not 0 <= new <= old:
                raise InputError(f"row {row} holds {old} tokens and cannot be cropped to {new}; give 0 to {old}")
        self._rewind(lengths)
        self.lengths = list(lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Make row i of the new batch what row rows[i] was: rows may be reordered, forked and dropped."""
        count = len(self.lengths)
        for row in rows:
            if not 0 <= row < count:
                raise InputError(f"there is no row {row} among {count}; name rows 0 to {count - 1}")
        self._take(rows)
        self.lengths = [self.lengths[row] for row in rows]

    def claim(self, route: Route | None) -> None:
        """Tag the cache with the route about to write it. Raises InputError when another route wrote what it holds."""
        if any(self.lengths) and route != self.route:
            raise InputError("this cache was written under another route; crop it to 0 or begin a new one")
        self.route = route

    def _rewind(self, lengths: Sequence[int]) -> None:
        """Before the lengths change; a store that overwrites what lies past a length has nothing to do."""

    def _take(self, rows: Sequence[int]) -> None:
        """Before the lengths change: move and copy what the rows hold."""
        raise NotImplementedError
