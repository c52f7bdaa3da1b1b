"""The loop: draft, verify, commit.

Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a drafter proposes tokens, the target judges them all in
one forward, and what it accepts plus one token of its own is the output of the round. Plain decoding is the same loop
with empty drafts. Invariant between rounds: the cache holds all tokens of each row but the last, which is fed next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate, takewhile

import torch

from slimtier.drafters.base import DraftContext, Drafter, Reading
from slimtier.errors import InputError
from slimtier.models.base import Cache, Target
from slimtier.sequence import Sequence, Step
from slimtier.types import Draft, Verdict
from slimtier.verifiers.base import Verifier, VerifyRow

PREFILL_CHUNK = 64  # tokens of a row in one forward
LEAST_SHARED = 8  # tokens that prompts begin with alike: fewer are not worth a forward of their own


def prefill(
    target: Target, cache: Cache, prompts: Seq[Seq[int]], drafter: Drafter | None = None, keys: Seq[int] = ()
) -> None:
    """Fill the cache with each row's prompt but its last token, going on from what the cache already holds.
    A drafter that reads the target's features gets those of row i under keys[i]."""
    capture = () if drafter is None else drafter.capture
    while True:
        ends = [len(prompt) - 1 for prompt in prompts]
        spans = [(n, min(n + PREFILL_CHUNK, end)) for n, end in zip(cache.lengths, ends, strict=True)]
        pieces = [list(prompt[start:stop]) for prompt, (start, stop) in zip(prompts, spans, strict=True)]
        if not any(pieces):
            return
        tokens, lengths = [token for piece in pieces for token in piece], [len(piece) for piece in pieces]
        _, streams = target.forward(tokens, cache, lengths, capture=capture)
        if drafter is not None and streams:
            features = torch.cat(streams, -1)
            parts = [features[end - n : end] for n, end in zip(lengths, accumulate(lengths), strict=True)]
            found = zip(keys, prompts, spans, parts, strict=True)
            drafter.read([Reading(key, prompt, start, part) for key, prompt, (start, _), part in found if len(part)])


def common_length(rows: Seq[Seq[int]]) -> int:
    """How many tokens all rows begin with."""
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False)))


def read_shared(
    target: Target, cache: Cache, prompts: Seq[Seq[int]], drafter: Drafter | None = None, keys: Seq[int] = ()
) -> int:
    """Before the prefill of an empty cache: what all prompts begin with, such as a system prompt, is read once, in the
    first row, and the others become what that row is. Returns how many tokens that is; too few are left alone."""
    first, others = prompts[0], prompts[1:]
    shared = common_length([prompt[:-1] for prompt in prompts])
    reads = drafter is not None and bool(drafter.capture)
    shared -= reads  # it pairs a position's features with the token after, which must be shared too
    if not others or shared < LEAST_SHARED:
        return 0
    prefill(target, cache, [first[: shared + 1], *(prompt[:1] for prompt in others)], drafter, keys)
    cache.keep([0] * len(prompts))
    if drafter is not None and reads:
        pairs = zip(keys[1:], others, strict=True)
        drafter.read([Reading(key, prompt, shared, source=keys[0]) for key, prompt in pairs])
    return shared


def fork(cache: Cache, drafter: Drafter, rows: Seq[Sequence], copies: int) -> None:
    """After the prefill of every `copies`-th row: the rows that follow each are made what it is."""
    cache.keep([row // copies for row in range(len(rows))])
    if drafter.capture:
        firsts = [row for row in rows[::copies] for _ in range(copies)]
        pairs = [pair for pair in zip(rows, firsts, strict=True) if pair[0] is not pair[1]]
        drafter.read([Reading(row.key, row.token_ids, len(row.token_ids) - 1, None, first.key) for row, first in pairs])


def generate(
    drafter: Drafter,
    verifier: Verifier,
    cache: Cache,
    sequences: Seq[Sequence],
    num_speculative_tokens: int,
    keep: bool = False,
) -> Iterator[Step]:
    """Decode the rows of a prefilled cache (row i is sequences[i], none finished) until each has ended.

    Yields a Step per row and round, after the round is committed: whatever the consumer does then, cache and sequences
    agree. Finished rows leave the cache, but those of the last round. Closing the generator frees the drafter's state,
    unless what was read is to `keep` for another request: resetting those rows is the caller's then.
    """
    active = list(sequences)
    try:
        while active:
            started = time.perf_counter()
            drafts = propose(drafter, verifier, active, num_speculative_tokens, cache)
            drafted = time.perf_counter()
            verdicts = verify(verifier, active, drafts, cache, drafter.capture)
            verified = time.perf_counter()
            drafter.observe([row.key for row in active], verdicts)
            steps = [
                row.commit(verdict, len(draft.token_ids), drafted - started, verified - drafted)
                for row, draft, verdict in zip(active, drafts, verdicts, strict=True)
            ]
            active = settle(drafter, cache, active)
            yield from steps
    finally:
        if not (keep and drafter.capture):
            drafter.reset([row.key for row in sequences])


def propose(
    drafter: Drafter, verifier: Verifier, rows: Seq[Sequence], num_speculative_tokens: int, cache: Cache
) -> list[Draft]:
    """A draft for each row; one place is left for the recovered or bonus token, so the budget is met exactly."""
    limits = [min(num_speculative_tokens, row.left() - 1) for row in rows]
    of_verifier = {"report": verifier.wants_draft_probs, "steady": verifier.steady}
    contexts = [
        DraftContext(
            row.key, row.token_ids, row.num_prompt_tokens, asked.sampling, asked.draft_noise, cache, **of_verifier
        )
        for row, asked in ((row, row.request) for row in rows)
    ]
    drafts = drafter.propose(contexts, limits)
    for draft, limit in zip(drafts, limits, strict=True):
        if len(draft.token_ids) > limit:
            raise InputError(
                f"drafter {drafter.name!r} proposed {len(draft.token_ids)} tokens where {limit} were asked for"
            )
    return drafts


def verify(
    verifier: Verifier, rows: Seq[Sequence], drafts: Seq[Draft], cache: Cache, capture: Seq[int] = ()
) -> list[Verdict]:
    """The verifier's verdict on each row's draft."""
    asked = [
        VerifyRow(
            row.token_ids,
            row.num_prompt_tokens,
            row.request.sampling,
            row.request.target_noise,
            row.request.logprobs,
            key=row.key,
        )
        for row in rows
    ]
    return verifier.verify(asked, drafts, cache, capture)


def settle(drafter: Drafter, cache: Cache, rows: list[Sequence]) -> list[Sequence]:
    """Crop the cache to the tokens that were kept (an EOS may have cut a block) and drop the rows that ended."""
    cache.crop([len(row.token_ids) - 1 for row in rows])
    going = [i for i, row in enumerate(rows) if row.finish_reason is None]
    if going and len(going) < len(rows):
        cache.keep(going)
        drafter.reset([row.key for row in rows if row.finish_reason is not None])
    return [rows[i] for i in going]
