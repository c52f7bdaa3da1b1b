"""Run rows through the loop, with what must hold between rounds checked after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slimtier.decode import generate, prefill
from slimtier.drafters.base import DraftContext, Drafter
from slimtier.noise import Noise
from slimtier.sequence import Request, Step
from slimtier.sequence import Sequence as Row
from slimtier.text import TextStream
from slimtier.types import Draft, SamplingParams, StopParams, Verdict
from slimtier.verifiers.base import Verifier
from slimtier.verifiers.lossless import LosslessVerifier
from tests.stubs import StubCache, StubTarget


def make_row(
    target: StubTarget,
    key: int,
    prompt: Sequence[int],
    sampling: SamplingParams | None = None,
    stop: StopParams | None = None,
    logprobs: int | None = None,
    tokenizer: object = None,
) -> Row:
    sampling, stop = sampling or SamplingParams(), stop or StopParams(max_new_tokens=24)
    noise = Noise.of(sampling.seed, stream="verifier")
    eos = target.info.eos_token_ids if stop.eos_token_ids is None else stop.eos_token_ids
    request = Request(
        sampling=sampling,
        stop=stop,
        eos_token_ids=frozenset(() if stop.ignore_eos else eos),
        context=target.info.max_positions,
        target_noise=noise,
        draft_noise=noise.fork("drafter"),
        logprobs=logprobs,
    )
    return Row(key, request, list(prompt), TextStream(tokenizer, stop.stop))


def decode_rows(
    target: StubTarget, drafter: Drafter, rows: Sequence[Row], k: int, verifier: Verifier | None = None
) -> list[Step]:
    """All steps; between rounds the cache holds exactly every live row's tokens but the last."""
    cache: StubCache = target.begin(len(rows), target.info.max_positions)
    prefill(target, cache, [row.token_ids for row in rows], drafter, [row.key for row in rows])
    steps = []
    lengths = {row.key: len(row.token_ids) for row in rows}
    for step in generate(drafter, verifier or LosslessVerifier(target), cache, rows, k):
        steps.append(step)
        room = next(row.request.stop.max_new_tokens + row.num_prompt_tokens for row in rows if row.key == step.key)
        assert step.drafted < min(room, target.info.max_positions) - lengths[step.key], (
            "no place for the target's token"
        )
        lengths[step.key] += len(step.token_ids)
        live = [row for row in rows if row.finish_reason is None]
        if live:
            assert cache.rows == [row.token_ids[:-1] for row in live]
        elif len(rows) == 1:
            assert cache.rows == [rows[0].token_ids[:-1]]
    for row in rows:
        assert lengths[row.key] == len(row.token_ids)
        assert row.finish_reason is not None
        assert len(row.deciders) == len(row.output_ids)
        mine = [step for step in steps if step.key == row.key]
        assert [token for step in mine for token in step.token_ids] == row.output_ids
        assert [step.finish_reason for step in mine] == [None] * (len(mine) - 1) + [row.finish_reason]
        assert "".join(step.text for step in mine) == row.text.text
    return steps


@dataclass
class ByKey:
    """A drafter for each key."""

    drafters: dict[int, Drafter]
    name: str = "by_key"
    capture: tuple[int, ...] = ()

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        pairs = zip(contexts, limits, strict=True)
        return [self.drafters[context.key].propose([context], [limit])[0] for context, limit in pairs]

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        for key, verdict in zip(keys, verdicts, strict=True):
            self.drafters[key].observe([key], [verdict])

    def reset(self, keys: Sequence[int] | None = None) -> None:
        for key in list(self.drafters) if keys is None else keys:
            self.drafters[key].reset([key])


def at_most(count: int, drafter: Drafter) -> Drafter:
    """The drafter, never asked for more than `count` tokens."""

    class Limited:
        name, capture = drafter.name, drafter.capture
        observe, read, reset = drafter.observe, drafter.read, drafter.reset

        def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
            return drafter.propose(contexts, [min(count, limit) for limit in limits])

    return Limited()


Factory = Callable[[StubTarget], Drafter]
