"""Token ids to text, piece by piece: whole characters only, and stop strings wherever they fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what decoding shows for bytes that are not (yet) a character


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class TextStream:
    """The text of one answer, grown token by token.

    A token may hold a part of a character, and a tokenizer may write a token differently at the start of a text;
    so a new token is decoded together with those of the last finished piece, and the difference is the new text. Text
    that may be the beginning of a stop string is held back until it is known not to be one.

    Example: stop "END", pieces "a E", "NDx" -> released "a " and "", as the second
    completes the stop; the text is "a ".
    """

    def __init__(self, decoder: Decoder | None, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._ids: list[int] = []  # tokens of the last finished piece, then those not yet written
        self._finished = 0  # how many of _ids are written to _text
        self.text = ""  # the text so far; final up to the stop string
        self._released = 0
        self._closed = False

    def push(self, token_id: int) -> bool:
        """Add a token. True when its text completes a stop string: the text is then cut before the first one."""
        if self._decoder is None:
            return False
        self._ids.append(token_id)
        return self._write(final=False)

    def finish(self) -> None:
        """Write what is left of an unfinished character; nothing is held back any more."""
        if self._decoder is not None and not self._closed:
            self._write(final=True)
            self._closed = True

    def take(self) -> str:
        """The text that became certain since the last call."""
        end = len(self.text) - (0 if self._closed else self._held_back())
        piece, self._released = self.text[self._released : end], max(self._released, end)
        return piece

    def _write(self, *, final: bool) -> bool:
        assert self._decoder is not None
        before = self._decoder.decode(self._ids[: self._finished])
        now = self._decoder.decode(self._ids)
        if len(now) <= len(before) or (now.endswith(UNFINISHED) and not final):
            return False
        old_length = len(self.text)
        self.text += now[len(before) :]
        self._ids = self._ids[self._finished :]
        self._finished = len(self._ids)
        return self._find_stop(old_length)

    def _find_stop(self, old_length: int) -> bool:
        # A match within the old text would have been found before: start where one would reach past it.
        found = [self.text.find(stop, max(0, old_length - len(stop) + 1)) for stop in self._stop]
        starts = [start for start in found if start >= 0]
        if starts:
            self.text = self.text[: min(starts)]
            self._closed = True
        return bool(starts)

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=0) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stop):
                return length
        return 0
