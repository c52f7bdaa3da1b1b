"""Lossless tiers: a drafter and a slim verifier, joined by the lossless rule, are a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch

from slimtier.drafters.base import DraftContext, Drafter, Reading
from slimtier.models.slim import SomeRows
from slimtier.penalties import changes_logits
from slimtier.sampling import needs_logits
from slimtier.types import Decider, Draft, Verdict, VerifyRow

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.noise import Noise


class SlimVerifier(Protocol):
    """A lossless verifier whose target is a slim verifier: the target on a route."""

    @property
    def target(self) -> Target: ...

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]: ...


@dataclass(slots=True)
class _Run:
    """What the slim verifier has output for a row since the target last looked."""

    context: DraftContext
    limit: int
    noise: Noise
    token_ids: list[int]
    deciders: list[Decider] = field(default_factory=list)
    probs: list[torch.Tensor] = field(default_factory=list)
    calls: int = 0

    @property
    def left(self) -> int:
        return self.limit - len(self.deciders)

    def extend(self, verdict: Verdict) -> None:
        self.token_ids.extend(verdict.token_ids)
        self.deciders += ["slim" if decider == "target" else decider for decider in verdict.deciders]
        self.calls += 1 + verdict.slim_calls
        if verdict.probs is not None:
            self.probs.append(verdict.probs)

    def draft(self) -> Draft:
        tokens = tuple(self.token_ids[len(self.context.token_ids) :])
        return Draft(tokens, torch.cat(self.probs) if self.probs else None, tuple(self.deciders), self.calls)


class TieredDrafter:
    """Rounds of `inner` and the slim verifier until `flush` tokens have come, or more, then the target looks at them.

    The slim verifier's tokens follow its own distributions exactly, which are what `Draft.probs` says; so with the
    lossless rule around it the output is the target's own, whatever the slim verifier does (staged speculative
    decoding; VIA-SD's tiers made lossless). Whether another token is drawn depends on those before it alone, and one
    that was drawn stays: the last round's are all kept, up to what was asked for, however many they are.

    The slim verifier goes on from the target's cache and leaves it as it was. `inner` is given the slim verifier's
    features as the run grows, and the target's for the tokens kept once it has looked. More tiers are more nesting.
    """

    def __init__(self, inner: Drafter, verifier: SlimVerifier, flush: int, num_speculative_tokens: int) -> None:
        """`num_speculative_tokens`: how far `inner` drafts at most."""
        self.name = inner.name
        self.inner = inner
        self.capture: tuple[int, ...] = inner.capture
        self.verifier = verifier
        self.flush = flush
        self.num_speculative_tokens = num_speculative_tokens
        self.depth: int = inner.depth + 1 if isinstance(inner, TieredDrafter) else 1
        self._ends = frozenset(verifier.target.info.eos_token_ids)
        self._noise: dict[int, Noise] = {}
        self._before: dict[int, Sequence[int]] = {}  # the tokens of a row that the last run went on from

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        if not contexts:
            return []
        cache = contexts[0].cache
        assert cache is not None, "a drafter of tiers runs on the target's cache"
        runs = [self._begin(context, limit) for context, limit in zip(contexts, limits, strict=True)]
        before = list(cache.lengths)
        try:
            going = list(range(len(runs)))
            while going := [row for row in going if self._goes_on(runs[row])]:
                self._round([runs[row] for row in going], SomeRows(cache, going))
        except Exception:
            if not any(run.deciders and changes_logits(run.context.sampling) for run in runs):
                raise
            # past the end of a row, it may be, where a constraint allows nothing: the runs end here
        finally:
            cache.crop(before)
        return [run.draft() for run in runs]

    def _begin(self, context: DraftContext, limit: int) -> _Run:
        self._before[context.key] = context.token_ids
        # each tier has a stream of its own: what one draws is tested by the next
        noise = self._noise.setdefault(context.key, context.noise.fork(f"slim {self.depth}"))
        return _Run(context, limit, noise, list(context.token_ids))

    def _goes_on(self, run: _Run) -> bool:
        if run.left <= 0 or len(run.deciders) >= self.flush:
            return False
        return not (run.deciders and self._ends.intersection(run.token_ids[-len(run.deciders) :]))

    def _round(self, runs: Sequence[_Run], cache: SomeRows) -> None:
        """Draft, verify by the slim verifier, commit to the runs."""
        contexts = [replace(run.context, token_ids=run.token_ids, cache=cache) for run in runs]
        drafts = self.inner.propose(contexts, [min(self.num_speculative_tokens, run.left - 1) for run in runs])
        rows = [
            VerifyRow(
                run.token_ids,
                run.context.num_prompt_tokens,
                run.context.sampling,
                run.noise,
                probs=needs_logits(run.context.sampling) and run.context.sampling.coupling == "rejection",
                key=run.context.key,
            )
            for run in runs
        ]
        verdicts = self.verifier.verify(rows, drafts, cache, self.capture)
        self.inner.observe([run.context.key for run in runs], verdicts)
        for run, verdict in zip(runs, verdicts, strict=True):
            run.extend(verdict)

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """The tokens that the target kept, with its own features in the place of the slim verifier's."""
        if not self.capture:
            return
        readings = []
        for key, verdict in zip(keys, verdicts, strict=True):
            if (before := self._before.get(key)) is not None:
                tokens = [*before, *verdict.token_ids]
                readings.append(Reading(key, tokens, len(tokens) - len(verdict.token_ids) - 1, verdict.features))
        self.inner.read(readings)

    def read(self, readings: Sequence[Reading]) -> None:
        self.inner.read(readings)

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self._before) if keys is None else keys:
            self._before.pop(key, None)
            self._noise.pop(key, None)
        self.inner.reset(keys)
