"""What decoding did and how long it took: counters of one request, and the numbers they give."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

from slimtier.types import Decider, Verdict


@dataclass(slots=True)
class TierCounters:
    """Who decided: of the output tokens, and of the drafted tokens who would have in lossy tiers, where that was
    observed; and how often the target and a slim verifier ran."""

    target_calls: int = 0  # verification forwards; prefill is not one
    slim_calls: int = 0
    decided: Counter[Decider] = field(default_factory=Counter)
    gated: Counter[Decider] = field(default_factory=Counter)

    def record(self, verdict: Verdict, kept: int) -> None:
        """One round, of which `kept` tokens were output."""
        self.target_calls += verdict.target_calls
        self.slim_calls += verdict.slim_calls
        self.decided.update(verdict.deciders[:kept])
        self.gated.update(verdict.gated[:kept])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `gated` only where it was observed."""
        deciders: tuple[Decider, ...] = get_args(Decider)
        counts = {"num_slim_calls": self.slim_calls, "decided": {who: self.decided[who] for who in deciders}}
        return counts | ({"gated": {who: self.gated[who] for who in deciders}} if self.gated else {})


@dataclass(slots=True)
class Counters:
    """Counted while one request is decoded; only tokens that were kept count (not those past an EOS or the budget).
    Times are `time.perf_counter()` seconds."""

    started: float = field(default_factory=time.perf_counter)
    first_token: float = 0.0  # when the first block arrived
    last_token: float = 0.0
    first_block: int = 0  # tokens in the first block
    tiers: TierCounters = field(default_factory=TierCounters)
    drafts: int = 0  # rounds with a draft of at least one token
    draft_tokens: int = 0
    examined: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0

    def record(self, drafted: int, verdict: Verdict, kept: int, draft_s: float, verify_s: float) -> None:
        """One round: `drafted` tokens proposed, `kept` tokens of the verdict output.

        Example: drafted 5, accepted 3 + 1 recovered, an EOS as second token -> kept 2, so accepted 2, examined 2.
        """
        self.last_token = time.perf_counter()
        if not self.first_block:
            self.first_token, self.first_block = self.last_token, kept
        self.tiers.record(verdict, kept)
        self.draft_s += draft_s
        self.verify_s += verify_s
        if not drafted:
            return
        self.drafts += 1
        self.draft_tokens += drafted
        self.examined += min(verdict.examined, kept)
        self.accepted_per_position += [0] * (drafted - len(self.accepted_per_position))
        for position in range(min(verdict.accepted, kept)):
            self.accepted_per_position[position] += 1


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of one request. Seconds are of its own wall time; the rows of a batch share theirs."""

    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, read by the request before, or with another prompt of this one
    num_output_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_examined_tokens: int
    accepted_per_position: tuple[int, ...]
    tiers: TierCounters
    time_to_first_token_s: float
    total_s: float
    tokens_per_s: float | None
    time_split_s: dict[str, float]  # draft, verify, other (prefill, tokenizing, detokenizing, the consumer of a stream)

    @classmethod
    def of(cls, counters: Counters, num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> Stats:
        """tokens_per_s is decoding only: tokens after the first block / seconds after it, which for plain decoding is
        (n - 1) / (t_last - t_first); None when everything came in one block."""
        total = max(0.0, counters.last_token - counters.started)
        seconds, later = counters.last_token - counters.first_token, num_output_tokens - counters.first_block
        return cls(
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=num_cached_tokens,
            num_output_tokens=num_output_tokens,
            num_drafts=counters.drafts,
            num_draft_tokens=counters.draft_tokens,
            num_examined_tokens=counters.examined,
            accepted_per_position=tuple(counters.accepted_per_position),
            tiers=counters.tiers,
            time_to_first_token_s=max(0.0, counters.first_token - counters.started),
            total_s=total,
            tokens_per_s=later / seconds if later > 0 and seconds > 0 else None,
            time_split_s={
                "draft": counters.draft_s,
                "verify": counters.verify_s,
                "other": max(0.0, total - counters.draft_s - counters.verify_s),
            },
        )

    @property
    def num_target_calls(self) -> int:
        return self.tiers.target_calls

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted_per_position)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens a speculating round yields, its recovered or bonus token included."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def mean_accepted_tokens(self) -> float:
        """accepted / drafts: the same without the recovered or bonus token."""
        return self.mean_acceptance_length - 1.0

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def rejection_rate(self) -> float | None:
        """changed / examined tokens."""
        examined = self.num_examined_tokens
        return (examined - self.num_accepted_tokens) / examined if examined else None

    @property
    def target_calls_per_token(self) -> float | None:
        return self.num_target_calls / self.num_output_tokens if self.num_output_tokens else None

    @property
    def end_to_end_tokens_per_s(self) -> float | None:
        """Output tokens / seconds from the request to its last token."""
        return self.num_output_tokens / self.total_s if self.num_output_tokens and self.total_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the words of vLLM's counters."""
        return {
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": list(self.accepted_per_position),
            "num_examined_tokens": self.num_examined_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "mean_accepted_tokens": self.mean_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "rejection_rate": self.rejection_rate,
            "num_target_calls": self.num_target_calls,
            "target_calls_per_token": self.target_calls_per_token,
            **self.tiers.to_dict(),
            "time_to_first_token_s": self.time_to_first_token_s,
            "tokens_per_s": self.tokens_per_s,
            "end_to_end_tokens_per_s": self.end_to_end_tokens_per_s,
            "total_s": self.total_s,
            "time_split_s": dict(self.time_split_s),
        }
