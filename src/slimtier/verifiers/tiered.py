"""Lossy tiers: the slim verifier settles what it is sure of, and only the rest goes to the target (VIA-SD)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from slimtier.errors import InputError
from slimtier.sampling import (
    accept_probability,
    is_greedy,
    judge,
    probabilities,
    process,
    residual,
    sample,
    target_token,
)
from slimtier.types import Decider, Draft, Verdict
from slimtier.verifiers.block import Scores, argmax_decides, check_draft, logprobs_of, refuse_gumbel, verify_blocks

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Reduce, Target
    from slimtier.verifiers.base import VerifyRow
    from slimtier.verifiers.gate import Gate


@dataclass(frozen=True, slots=True)
class _Block:
    """What a model said of one row's slots: logits [len(draft) + 1, vocab] or the argmax of each, captured states
    [len(draft) + 1, ...], and beside the slim verifier's argmax the best two logits [2, len(draft) + 1]."""

    scores: Scores
    features: torch.Tensor | None
    best: torch.Tensor


@dataclass(slots=True)
class _Scan:
    """One row's block as far as it is decided."""

    row: VerifyRow
    draft: Draft
    slim: _Block
    history: list[int]
    deciders: list[Decider]
    accepted: int = 0
    ended: bool = False  # at a changed or a bonus token

    @property
    def slot(self) -> int:
        return len(self.deciders)

    @property
    def drafted(self) -> int | None:
        return self.draft.token_ids[self.slot] if self.slot < len(self.draft.token_ids) else None

    def put(self, token: int, kept: bool, decider: Decider) -> None:
        self.history.append(token)
        self.deciders.append(decider)
        self.accepted += kept
        self.ended = not kept


class TieredVerifier:
    """Lossy: `slim` judges every block, by `gate`; the target is asked where the gate escalates, of all that is left
    of the block at once. What the target did not see it reads then, in the same forward.

    The slim verifier goes on from the target's cache and writes to it (`Cache.verified` says how far the target's own
    part goes); before the target runs, what the slim verifier wrote is cropped and written anew. With
    `gate.reread` only so many tokens before the block are: the target goes on from what the slim verifier wrote before.

    Above temperature 0 a token that reaches the target in region C = {u : r(u) < escalate} is a draw of the drafter
    *given* C, so it is kept with min(1, target / draft_C) and replaced from (target - draft_C)+. The output of a slot
    is then draft · 1[A] + P(B) · slim + P(C) · target, VIA-SD's three-tier mixture.
    """

    lossless = False
    wants_draft_probs = False

    def __init__(self, target: Target, slim: Target, gate: Gate, name: str = "paper") -> None:
        self.name = name
        self.target = target
        self.slim = slim
        self.gate = gate
        self.steady = not gate.slim_alone

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`. Raises InputError for gumbel coupling, under which nothing is left to a gate, and of a
        calibrated gate above temperature 0, where its bound says nothing."""
        for row, draft in zip(rows, drafts, strict=True):
            refuse_gumbel(row.sampling, self.name)
            if self.name == "calibrated" and not is_greedy(row.sampling):
                raise InputError("the gate was calibrated at temperature 0: use that, or tiers paper")
            check_draft(draft, self.target.info.vocab_size)
        if self.gate.slim_alone and all(is_greedy(row.sampling) for row in rows):
            return self._alone(verify_blocks(self.slim, rows, drafts, cache, capture=capture))
        fed = [(row.token_ids[-1], *draft.token_ids) for row, draft in zip(rows, drafts, strict=True)]
        resume = self._resume(cache)  # before the pass: a slim verifier that skips nothing adds to `verified`
        fused = self.gate.by_best_two and all(map(argmax_decides, rows))
        blocks = run(self.slim, fed, cache, capture, reduce="best two" if fused else "logits")
        scans = [
            _Scan(row, draft, block, list(row.token_ids), [])
            for row, draft, block in zip(rows, drafts, blocks, strict=True)
        ]
        escalated = [index for index, scan in enumerate(scans) if self._settle(scan)]
        checked = self._escalate(scans, escalated, resume, cache, capture) if escalated else {}
        cache.crop([len(scan.history) - 1 for scan in scans])
        return [self._verdict(scan, checked.get(index)) for index, scan in enumerate(scans)]

    def _resume(self, cache: Cache) -> list[int]:
        """From which token of each row on the target would read."""
        reread = self.gate.reread
        if reread is None:
            return list(cache.verified)
        return [max(read, length - reread) for read, length in zip(cache.verified, cache.lengths, strict=True)]

    def _alone(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The slim verifier's verdicts where it decides everything: logits are not needed."""
        kept: Decider = "drafter" if self.gate.accept <= 1.0 else "slim"
        own: Decider = "slim"
        return [
            replace(
                verdict,
                deciders=(*(kept,) * verdict.accepted, *(own,) * (len(verdict.token_ids) - verdict.accepted)),
                target_calls=0,
                slim_calls=1 + verdict.slim_calls,
            )
            for verdict in verdicts
        ]

    def _settle(self, scan: _Scan) -> bool:
        """Scan a row's slots as long as the drafter's and the slim verifier's tokens stand; whether the target is
        needed for the next one."""
        while not scan.ended:
            try:
                decider, own = self._decide(scan)
                if decider == "target":
                    return True
                if decider == "drafter":
                    assert scan.drafted is not None
                    scan.put(scan.drafted, True, "drafter")
                    continue
            except Exception:
                if scan.slot == 0:
                    raise
                return False  # past the row's end, it may be; see `verify_blocks`
            scan.put(own, own == scan.drafted, "slim")
        return False

    def _decide(self, scan: _Scan) -> tuple[Decider, int]:
        """Who decides the next slot, and the slim verifier's own token, if that is who."""
        row, slot = scan.row, scan.slot
        if isinstance(scan.slim.scores, list):
            own = scan.slim.scores[slot]
            best, second = scan.slim.best[:, slot]
            return self.gate.decide_by_best_two(best, second, own == scan.drafted), own
        logits = process(scan.slim.scores[slot], scan.history, row.num_prompt_tokens, row.sampling)
        decider = self.gate.decide(logits, scan.drafted)
        is_own = decider == "slim"
        return decider, target_token(logits, row.sampling, row.noise, len(scan.history)) if is_own else -1

    def _escalate(
        self,
        scans: Sequence[_Scan],
        escalated: Sequence[int],
        resume: Sequence[int],
        cache: Cache,
        capture: Sequence[int],
    ) -> dict[int, _Block]:
        """Let the target catch up with these rows from the tokens resume[r] on, and decide the rest of their blocks."""
        cache.crop([resume[index] if index in escalated else length for index, length in enumerate(cache.lengths)])
        if self.gate.reread is not None:
            cache.adopt(escalated)
        fed: list[Sequence[int]] = [()] * len(scans)
        for index in escalated:
            scan = scans[index]
            fed[index] = (*scan.row.token_ids[resume[index] :], *scan.draft.token_ids)
        wanted = [1 + len(scan.draft.token_ids) for scan in scans]
        fused = isinstance(scans[0].slim.scores, list)
        blocks = run(self.target, fed, cache, capture, wanted, "argmax" if fused else "logits")
        for index in escalated:
            self._check(scans[index], blocks[index])
        return {index: blocks[index] for index in escalated}

    def _check(self, scan: _Scan, block: _Block) -> None:
        """The target's decisions on the slots from the escalated one on."""
        first = scan.slot
        while not scan.ended:
            slot, drafted, row = scan.slot, scan.drafted, scan.row
            if isinstance(block.scores, list):
                scan.put(block.scores[slot], block.scores[slot] == drafted, "target")
                continue
            try:
                logits = process(block.scores[slot], scan.history, row.num_prompt_tokens, row.sampling)
                if drafted is None:
                    scan.put(target_token(logits, row.sampling, row.noise, len(scan.history)), False, "target")
                    continue
                probs = None if scan.draft.probs is None else scan.draft.probs[slot].to(logits.device)
                if slot == first and not is_greedy(row.sampling):
                    token, kept = self._test(scan, drafted, probs, logits)
                else:
                    token, kept = judge(drafted, probs, logits, row.sampling, row.noise, len(scan.history))
            except Exception:
                if slot == 0:
                    raise
                return
            scan.put(token, kept, "target")

    def _test(self, scan: _Scan, drafted: int, probs: torch.Tensor | None, logits: torch.Tensor) -> tuple[int, bool]:
        """The first escalated slot above temperature 0: the drafted token as a draw of the drafter given region C."""
        row = scan.row
        target_probs = probabilities(logits, row.sampling)
        if self.gate.literal:
            token = sample(target_probs, row.noise.uniform())
            return token, token == drafted
        if probs is None:
            return judge(drafted, None, logits, row.sampling, row.noise, len(scan.history))
        assert isinstance(scan.slim.scores, torch.Tensor)
        slim = process(scan.slim.scores[scan.slot], scan.history, row.num_prompt_tokens, row.sampling)
        restricted = probs * self.gate.region(slim).to(probs.device)
        restricted = restricted / restricted.sum()
        if row.noise.uniform() < accept_probability(float(target_probs[drafted]), float(restricted[drafted])):
            return drafted, True
        return sample(residual(target_probs, restricted), row.noise.uniform()), False

    def _verdict(self, scan: _Scan, checked: _Block | None) -> Verdict:
        start, kept = len(scan.row.token_ids), len(scan.deciders)
        token_ids = tuple(scan.history[start:])
        said = scan.slim if checked is None else checked
        features, lagged = said.features, tuple[int, ...]()
        if features is not None:
            lag = len(features) - len(said.scores)  # states before the block, which the target gave anew
            features, lagged = features[: lag + kept], tuple(scan.row.token_ids[start - lag :])
        return Verdict(
            token_ids=token_ids,
            accepted=scan.accepted,
            examined=min(kept, len(scan.draft.token_ids)),
            deciders=tuple(scan.deciders),
            logprobs=logprobs_of(said.scores, token_ids, scan.row.logprobs),
            features=features,
            target_calls=0 if checked is None else 1,
            slim_calls=1 + scan.draft.slim_calls,
            lagged=lagged,
        )


class ObservingVerifier:
    """Lossless decoding, with a look at what the gate would have done with each drafted token (`Verdict.gated`)."""

    name = "observe"
    lossless = True
    steady = False
    wants_draft_probs = False

    def __init__(self, target: Target, slim: Target, gate: Gate) -> None:
        self.target = target
        self.slim = slim
        self.gate = gate

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`."""
        before = list(cache.lengths)
        for draft in drafts:
            check_draft(draft, self.target.info.vocab_size)
        blocks = run(self.slim, [(r.token_ids[-1], *d.token_ids) for r, d in zip(rows, drafts, strict=True)], cache)
        cache.crop(before)
        verdicts = verify_blocks(self.target, rows, drafts, cache, capture=capture)
        return [
            replace(verdict, gated=self._gated(row, draft, block, verdict.examined), slim_calls=1 + verdict.slim_calls)
            for row, draft, block, verdict in zip(rows, drafts, blocks, verdicts, strict=True)
        ]

    def _gated(self, row: VerifyRow, draft: Draft, block: _Block, examined: int) -> tuple[Decider, ...]:
        deciders = []
        assert isinstance(block.scores, torch.Tensor)
        for slot, token in enumerate(draft.token_ids[:examined]):
            history = [*row.token_ids, *draft.token_ids[:slot]]
            logits = process(block.scores[slot], history, row.num_prompt_tokens, row.sampling)
            deciders.append(self.gate.decide(logits, token))
        return tuple(deciders)


def run(
    model: Target,
    fed: Sequence[Sequence[int]],
    cache: Cache,
    capture: Sequence[int] = (),
    wanted: Sequence[int] | None = None,
    reduce: Reduce = "logits",
) -> list[_Block]:
    """Append each row's tokens to the cache: what the head says of the last wanted[r] of them (None: of all), and what
    is captured of all."""
    lengths = [len(tokens) for tokens in fed]
    hidden, streams = model.forward([token for tokens in fed for token in tokens], cache, lengths, capture=capture)
    ends = list(accumulate(lengths))
    counts = [min(w, n) for w, n in zip(wanted or lengths, lengths, strict=True)]
    found = model.head(torch.cat([hidden[end - count : end] for end, count in zip(ends, counts, strict=True)]), reduce)
    scores, best = found if isinstance(found, tuple) else (found, torch.empty(2, 0))
    packed = torch.cat(streams, -1) if streams else None
    parts = zip(ends, lengths, accumulate(counts), counts, strict=True)
    return [
        _Block(
            scores[to - count : to], None if packed is None else packed[end - length : end], best[:, to - count : to]
        )
        for end, length, to, count in parts
    ]
