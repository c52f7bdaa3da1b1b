"""The loop: draft, verify, commit.

Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a drafter proposes tokens, the target judges them all in
one forward, and what it accepts plus one token of its own is the output of the round. Plain decoding is the same loop
with empty drafts. Invariant between rounds: the cache holds all tokens of each row but the last, which is fed next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from slimtier.drafters.base import DraftContext, Drafter
from slimtier.errors import InputError
from slimtier.models.base import Cache, Target
from slimtier.sequence import Sequence, Step
from slimtier.types import Draft, Verdict
from slimtier.verifiers.base import Verifier, VerifyRow

PREFILL_CHUNK = 64  # tokens of a row in one forward


def prefill(target: Target, cache: Cache, prompts: Seq[Seq[int]]) -> None:
    """Fill the cache with each row's prompt but its last token, going on from what the cache already holds."""
    while True:
        ends = [len(prompt) - 1 for prompt in prompts]
        spans = [(n, min(n + PREFILL_CHUNK, end)) for n, end in zip(cache.lengths, ends, strict=True)]
        pieces = [list(prompt[start:stop]) for prompt, (start, stop) in zip(prompts, spans, strict=True)]
        if not any(pieces):
            return
        target.forward([token for piece in pieces for token in piece], cache, [len(piece) for piece in pieces])


def generate(
    drafter: Drafter, verifier: Verifier, cache: Cache, sequences: Seq[Sequence], num_speculative_tokens: int
) -> Iterator[Step]:
    """Decode the rows of a prefilled cache (row i is sequences[i], none finished) until each has ended.

    Yields a Step per row and round, after the round is committed: whatever the consumer does then, cache and sequences
    agree. Finished rows leave the cache, but those of the last round. Closing the generator frees the drafter's state.
    """
    active = list(sequences)
    try:
        while active:
            started = time.perf_counter()
            drafts = propose(drafter, active, num_speculative_tokens)
            drafted = time.perf_counter()
            verdicts = verify(verifier, active, drafts, cache)
            verified = time.perf_counter()
            drafter.observe([row.key for row in active], verdicts)
            steps = [
                row.commit(verdict, len(draft.token_ids), drafted - started, verified - drafted)
                for row, draft, verdict in zip(active, drafts, verdicts, strict=True)
            ]
            active = settle(drafter, cache, active)
            yield from steps
    finally:
        drafter.reset([row.key for row in sequences])


def propose(drafter: Drafter, rows: Seq[Sequence], num_speculative_tokens: int) -> list[Draft]:
    """A draft for each row; one place is left for the recovered or bonus token, so the budget is met exactly."""
    limits = [min(num_speculative_tokens, row.left() - 1) for row in rows]
    contexts = [
        DraftContext(row.key, row.token_ids, row.num_prompt_tokens, row.request.sampling, row.request.draft_noise)
        for row in rows
    ]
    drafts = drafter.propose(contexts, limits)
    for draft, limit in zip(drafts, limits, strict=True):
        if len(draft.token_ids) > limit:
            raise InputError(
                f"drafter {drafter.name!r} proposed {len(draft.token_ids)} tokens where {limit} were asked for"
            )
    return drafts


def verify(verifier: Verifier, rows: Seq[Sequence], drafts: Seq[Draft], cache: Cache) -> list[Verdict]:
    """The verifier's verdict on each row's draft."""
    asked = [
        VerifyRow(
            row.token_ids, row.num_prompt_tokens, row.request.sampling, row.request.target_noise, row.request.logprobs
        )
        for row in rows
    ]
    return verifier.verify(asked, drafts, cache)


def settle(drafter: Drafter, cache: Cache, rows: list[Sequence]) -> list[Sequence]:
    """Crop the cache to the tokens that were kept (an EOS may have cut a block) and drop the rows that ended."""
    cache.crop([len(row.token_ids) - 1 for row in rows])
    going = [i for i, row in enumerate(rows) if row.finish_reason is None]
    if going and len(going) < len(rows):
        cache.keep(going)
        drafter.reset([row.key for row in rows if row.finish_reason is not None])
    return [rows[i] for i in going]
