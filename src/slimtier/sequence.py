"""One request while it is decoded: its tokens, its text, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slimtier.stats import Counters
from slimtier.text import TextStream
from slimtier.types import Decider, FinishReason, SamplingParams, StopParams, Verdict

if TYPE_CHECKING:
    from slimtier.sampling import Noise


@dataclass(frozen=True, slots=True)
class Step:
    """What one round gave one row. `text` is what became certain: with stop strings it may lag behind the tokens."""

    key: int
    token_ids: tuple[int, ...]
    text: str
    deciders: tuple[Decider, ...]
    logprobs: tuple[Mapping[int, float], ...]
    drafted: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of one row. `eos_token_ids` are those that end it (none with ignore_eos);
    `context` is the most tokens the model can hold, prompt and output."""

    sampling: SamplingParams
    stop: StopParams
    eos_token_ids: frozenset[int]
    context: int
    target_noise: Noise
    draft_noise: Noise
    logprobs: int | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one row. `token_ids` is prompt + output; `key` names the row over its life.
    For an encoder-decoder `inputs` are the encoder's tokens, and the prompt is the decoder's start token."""

    key: int
    request: Request
    token_ids: list[int]
    text: TextStream
    inputs: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    counters: Counters = field(default_factory=Counters)
    deciders: list[Decider] = field(default_factory=list)
    logprobs: list[Mapping[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        if self.left() <= 0:
            self.finish_reason = self._ending_by_length()

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def left(self) -> int:
        """How many more tokens may be output: what the budget and the context leave."""
        budget = self.request.stop.max_new_tokens - (len(self.token_ids) - self.num_prompt_tokens)
        return min(budget, self.request.context - len(self.token_ids))

    def commit(self, verdict: Verdict, drafted: int, draft_s: float, verify_s: float) -> Step:
        """Append the tokens of a round one by one, as plain decoding would, up to the one that ends the request."""
        kept = 0
        for token_id in verdict.token_ids:
            self.token_ids.append(token_id)
            kept += 1
            self.finish_reason = self._ending(token_id)
            if self.finish_reason is not None:
                self.text.finish()
                break
        deciders, logprobs = verdict.deciders[:kept], verdict.logprobs[:kept]
        self.deciders += deciders
        self.logprobs += logprobs
        self.counters.record(drafted, verdict, kept, draft_s, verify_s)
        return Step(
            self.key, verdict.token_ids[:kept], self.text.take(), deciders, logprobs, drafted, self.finish_reason
        )

    def _ending(self, token_id: int) -> FinishReason | None:
        if token_id in self.request.eos_token_ids or self.text.push(token_id):
            return "stop"
        return self._ending_by_length() if self.left() <= 0 else None

    def _ending_by_length(self) -> FinishReason:
        full = len(self.token_ids) - self.num_prompt_tokens >= self.request.stop.max_new_tokens
        return "length" if full else "context"
