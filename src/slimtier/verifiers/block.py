"""One round of verification, shared by the verifiers: every row's draft in one pass of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import torch

from slimtier.errors import InputError
from slimtier.sampling import Noise, is_greedy, judge, needs_logits, probabilities, process, target_token
from slimtier.types import Decider, Draft, SamplingParams, Verdict

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.verifiers.base import VerifyRow

# What the head said of one row's slots: logits [len(draft) + 1, vocab], or the argmax of each slot.
Scores = torch.Tensor | list[int]
Packed = TypeVar("Packed", torch.Tensor, list[int], Scores)
# Decides a slot from what `sampling.judge` is given, as it does: the output token, and whether it is the drafted one.
Judge = Callable[[int, torch.Tensor | None, torch.Tensor, SamplingParams, Noise, int], tuple[int, bool]]


def verify_blocks(
    target: Target,
    rows: Sequence[VerifyRow],
    drafts: Sequence[Draft],
    cache: Cache,
    lossy: Judge | None = None,
    capture: Sequence[int] = (),
) -> list[Verdict]:
    """Verify one draft a row; see `Verifier.verify`. Each row's last token and draft are packed into one forward;
    slot j of a row scores what follows its first j draft tokens, the slot after the last one is the bonus. `lossy`
    decides the slots of drafted tokens in the place of `sampling.judge`.

    Rows whose argmax alone decides never get logits. Raises InputError for a draft that cannot be one of the target.
    """
    for draft in drafts:
        check_draft(draft, target.info.vocab_size)
    lengths = [1 + len(draft.token_ids) for draft in drafts]
    tokens = [token for row, draft in zip(rows, drafts, strict=True) for token in (row.token_ids[-1], *draft.token_ids)]
    fused = [lossy is None and argmax_decides(row) for row in rows]
    hidden, streams = target.forward(tokens, cache, lengths, capture=capture)
    scores = _read_head(target, hidden, lengths, fused)
    verdicts = [_judge_row(*each, lossy or judge) for each in zip(rows, drafts, scores, strict=True)]
    cache.crop([len(row.token_ids) + verdict.accepted for row, verdict in zip(rows, verdicts, strict=True)])
    return _with_features(verdicts, streams, lengths) if streams else verdicts


def _with_features(
    verdicts: Sequence[Verdict], streams: Sequence[torch.Tensor], lengths: Sequence[int]
) -> list[Verdict]:
    """The verdicts with what of the streams [N, hidden] belongs to the tokens kept, side by side."""
    starts = accumulate(lengths, initial=0)
    return [
        replace(verdict, features=torch.cat([stream[start : start + len(verdict.token_ids)] for stream in streams], -1))
        for verdict, start in zip(verdicts, starts, strict=False)
    ]


def argmax_decides(row: VerifyRow) -> bool:
    """Whether nothing of the logits but their argmax is asked for."""
    return row.logprobs is None and not needs_logits(row.sampling)


def check_draft(draft: Draft, vocab_size: int) -> None:
    """Raises InputError for a draft that cannot be one of a target with that vocabulary."""
    for token in draft.token_ids:
        if not 0 <= token < vocab_size:
            raise InputError(
                f"the drafter proposed token {token}, but the target has {vocab_size} tokens: "
                "use a drafter made for this target's vocabulary"
            )
    if draft.probs is None or not draft.token_ids:
        return
    shape = (len(draft.token_ids), vocab_size)
    if tuple(draft.probs.shape) != shape:
        raise InputError(
            f"the drafter gave probabilities of shape {tuple(draft.probs.shape)} where {shape} was needed: "
            "it must report one distribution over the target's vocabulary for each token"
        )
    drawn = draft.probs[torch.arange(shape[0]), torch.tensor(draft.token_ids)]
    if not bool((torch.isfinite(drawn) & (drawn > 0.0)).all()):
        raise InputError(
            f"the drafter gave its own tokens the probabilities {drawn.tolist()}: "
            "each must be above 0, as in the distribution that the token was drawn from"
        )


def refuse_gumbel(sampling: SamplingParams, name: str) -> None:
    """Raises InputError where a lossy rule has nothing to decide."""
    if sampling.coupling == "gumbel" and not is_greedy(sampling):
        raise InputError(
            f"coupling 'gumbel' and the verifier {name!r} exclude each other: "
            "use coupling 'rejection' or the verifier 'lossless'"
        )


def _read_head(target: Target, hidden: torch.Tensor, lengths: Sequence[int], fused: Sequence[bool]) -> list[Scores]:
    """The scores of each row from hidden [N, hidden], with one head call for the fused rows and one for the others."""
    blocks = _unpack(hidden, lengths)
    scores: dict[int, Scores] = {}
    for is_fused in (True, False):
        members = [row for row, kind in enumerate(fused) if kind is is_fused]
        if members:
            packed = hidden if len(members) == len(blocks) else torch.cat([blocks[row] for row in members])
            found: Scores = target.head(packed, "argmax") if is_fused else target.head(packed)
            scores.update(zip(members, _unpack(found, [lengths[row] for row in members]), strict=True))
    return [scores[row] for row in range(len(blocks))]


def _unpack(packed: Packed, lengths: Sequence[int]) -> list[Packed]:
    return [packed[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]


def _judge_row(row: VerifyRow, draft: Draft, scores: Scores, decide: Judge) -> Verdict:
    """Scan one row's slots up to the first token that is the target's own: a recovered or the bonus token.

    A slot that fails after the first one may lie past the row's end (an EOS in the draft, after which a constraint
    allows nothing), where plain decoding never asks. The block then ends before it, with the last kept token as the
    bonus; if the row goes on, the next round meets the same failure at its first slot and raises it.
    """
    history = list(row.token_ids)
    kept = True
    slot = 0
    while kept:
        try:
            token, kept = _judge_slot(row, history, draft, slot, scores, decide)
        except Exception:
            if slot == 0:
                raise
            break
        history.append(token)
        slot += 1
    token_ids = tuple(history[len(row.token_ids) :])
    accepted = slot - 1
    drafters: list[Decider] = ["drafter"] * accepted
    return Verdict(
        token_ids=token_ids,
        accepted=accepted,
        examined=accepted if kept else min(slot, len(draft.token_ids)),
        deciders=(*(draft.deciders[:accepted] or drafters), "target"),
        logprobs=logprobs_of(scores, token_ids, row.logprobs),
        slim_calls=draft.slim_calls,
        probs=_distributions(row, scores, history) if row.probs else None,
    )


def _distributions(row: VerifyRow, scores: Scores, history: Sequence[int]) -> torch.Tensor | None:
    """What each output token follows, [tokens, vocab]; None where the argmax alone decides."""
    if isinstance(scores, list):
        return None
    before = range(len(row.token_ids), len(history))
    processed = [process(scores[i], history[:end], row.num_prompt_tokens, row.sampling) for i, end in enumerate(before)]
    return torch.stack([probabilities(logits, row.sampling) for logits in processed])


def _judge_slot(
    row: VerifyRow, history: list[int], draft: Draft, slot: int, scores: Scores, decide: Judge
) -> tuple[int, bool]:
    """The token of one slot after `history` (which holds the draft's first `slot` tokens), and whether it is the
    draft's. Bias, penalties and processors see this very history, at every slot, the bonus included."""
    drafted = draft.token_ids[slot] if slot < len(draft.token_ids) else None
    if isinstance(scores, list):
        return scores[slot], scores[slot] == drafted
    logits = process(scores[slot], history, row.num_prompt_tokens, row.sampling)
    position = len(history)
    if drafted is None:
        return target_token(logits, row.sampling, row.noise, position), False
    draft_probs = None if draft.probs is None else draft.probs[slot].to(logits.device)
    return decide(drafted, draft_probs, logits, row.sampling, row.noise, position)


def logprobs_of(scores: Scores, token_ids: Sequence[int], count: int | None) -> tuple[dict[int, float], ...]:
    """For each output token the log probabilities of it and of the `count` most probable tokens, by the model's own
    distribution: before bias, penalties, processors and temperature."""
    if count is None or isinstance(scores, list):
        return ()
    found: list[dict[int, float]] = []
    for slot, token in enumerate(token_ids):
        logprobs = scores[slot].log_softmax(0)
        top = logprobs.topk(min(count, logprobs.numel()))
        best = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        found.append({token: float(logprobs[token]), **dict(best)})
    return tuple(found)
