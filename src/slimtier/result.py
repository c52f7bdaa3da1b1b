"""What a request gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from slimtier.sequence import Step
from slimtier.stats import Stats
from slimtier.types import Decider, FinishReason


@dataclass(frozen=True, slots=True)
class RunInfo:
    """With what a request was run. `tiers`: those with a slim verifier, if any. `lossless` False: the verifier may
    change what the target would have written."""

    model: str
    runtime: str
    precision: str
    drafter: str
    verifier: str
    lossless: bool
    tiers: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One answer. `token_ids` are the output tokens, the EOS that ended it included (its text is not in `text`);
    with a stop string they end at the token that completed it, and `text` ends before it.
    `deciders` says who chose each token; `logprobs` has one {token id: log probability} a token, the chosen one first.
    `seed` is the one that was used: given again, it gives the same answer."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stats: Stats
    deciders: tuple[Decider, ...]
    logprobs: tuple[Mapping[int, float], ...]
    seed: int
    run: RunInfo

    @property
    def lossless(self) -> bool:
        return self.run.lossless

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `logprobs` only when they were asked for."""
        logprobs = {"logprobs": [dict(one) for one in self.logprobs]} if self.logprobs else {}
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "deciders": list(self.deciders),
            "stats": self.stats.to_dict(),
            "seed": self.seed,
            **asdict(self.run),
            **logprobs,
        }


class Stream(Iterator[Step]):
    """An answer as it is written: an iterator of Steps (`.text`, `.token_ids`, `.deciders`); `.result` is there after
    the last. The texts joined are the result's text. `close()`, or leaving a `with` block, cancels the request."""

    def __init__(self, steps: Iterator[Step], finish: Callable[[], Result]) -> None:
        self._steps = steps
        self._finish = finish
        self._closed = False
        self.result: Result | None = None

    def __next__(self) -> Step:
        try:
            return next(self._steps)
        except StopIteration:
            if not self._closed and self.result is None:
                self.result = self._finish()
            raise
        except BaseException:
            self._closed = True  # a request that failed has no result
            raise

    def close(self) -> None:
        """Stop decoding and free what the request holds; harmless after the end."""
        self._closed = True
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
