"""Models and drafters without weights, whose every answer can be worked out independently.

`StubTarget` computes the logits after a history from that history alone, as its cache remembers it: a cache cropped
wrongly, rows swapped or a token fed twice change the answer. `plain_tokens` decodes it without any cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch

from slimtier.decode import prefill
from slimtier.drafters.base import DraftContext, Drafter, Reading
from slimtier.errors import NonFiniteError
from slimtier.models.base import BestTwo, TargetInfo, reduced
from slimtier.sampling import Noise, choose, process, target_token
from slimtier.types import Draft, Route, SamplingParams, Verdict
from slimtier.verifiers.base import Verifier, VerifyRow

LogitsOf = Callable[[tuple[int, ...]], torch.Tensor]


def seeded_normal(size: int, *parts: object) -> torch.Tensor:
    """Standard normal float32 [size] that is a function of `parts` alone."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return torch.randn(size, generator=torch.Generator().manual_seed(int.from_bytes(digest, "little")))


class StubCache:
    """A cache that remembers the tokens themselves: `rows[r]` is what the model has seen of row r."""

    def __init__(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> None:
        self.capacity = capacity
        self.rows: list[list[int]] = [[] for _ in range(num_rows)]
        self.routes: list[list[Route | None]] = [[] for _ in range(num_rows)]  # under which each token was written
        self.adopted = [0] * num_rows  # how far the whole target may go on from, whoever wrote it
        self.inputs = [tuple(row) for row in inputs] if inputs is not None else [()] * num_rows

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.rows]

    @property
    def verified(self) -> list[int]:
        return [next((i for i, route in enumerate(row) if route is not None), len(row)) for row in self.routes]

    def crop(self, lengths: Sequence[int]) -> None:
        assert len(lengths) == len(self.rows), "crop names every row"
        for row, routes, length in zip(self.rows, self.routes, lengths, strict=True):
            assert 0 <= length <= len(row), f"crop may not grow a row: {len(row)} -> {length}"
            del row[length:], routes[length:]
        self.adopted = [min(pair) for pair in zip(self.adopted, lengths, strict=True)]

    def adopt(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.adopted[row] = len(self.rows[row])

    def keep(self, rows: Sequence[int]) -> None:
        self.rows, self.inputs = [list(self.rows[row]) for row in rows], [self.inputs[row] for row in rows]
        self.routes = [list(self.routes[row]) for row in rows]
        self.adopted = [self.adopted[row] for row in rows]


class StubTarget:
    """A target whose logits [vocab] after a history are `logits_of(history)`, by default a seeded random table of
    the last `order` tokens (None: all) times `scale`. Hidden states are the logits themselves. On a route that skips
    something the logits are moved by `route_noise`. `calls` and `heads` log what was asked."""

    def __init__(
        self,
        vocab_size: int = 96,
        *,
        seed: int = 0,
        scale: float = 4.0,
        order: int | None = None,
        logits_of: LogitsOf | None = None,
        num_layers: int = 4,
        max_positions: int = 256,
        eos_token_ids: tuple[int, ...] = (),
        route_noise: float = 1.0,
    ) -> None:
        self.info = TargetInfo(
            name="stub",
            runtime="native",
            precision="fp32",
            vocab_size=vocab_size,
            hidden_size=vocab_size,
            num_layers=num_layers,
            max_positions=max_positions,
            eos_token_ids=eos_token_ids,
            exact=True,
            weight_bytes=0,
        )
        self.seed, self.scale, self.order, self.route_noise = seed, scale, order, route_noise
        self._logits_of = logits_of
        self.calls: list[tuple[int, ...]] = []  # lengths of each forward
        self.heads: list[tuple[str, int]] = []  # (reduce, rows) of each head

    def logits_of(self, history: Sequence[int], route: Route | None = None) -> torch.Tensor:
        """The logits [vocab] after `history`, worked out from scratch."""
        size = self.info.vocab_size
        seen = tuple(history) if self.order is None else tuple(history)[len(history) - self.order :]
        if self._logits_of is not None:
            logits = self._logits_of(seen).clone()
        else:
            logits = self.scale * seeded_normal(size, self.seed, seen)
        if route is not None and route != Route.full(self.info.num_layers):
            logits += self.route_noise * seeded_normal(size, self.seed, seen, route.attention, route.mlp)
        return logits

    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> StubCache:
        return StubCache(num_rows, capacity, inputs)

    def forward(
        self,
        tokens: Sequence[int],
        cache: StubCache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        assert len(lengths) == len(cache.rows), "one length for every row"
        assert sum(lengths) == len(tokens), "the lengths add up to the tokens"
        assert all(0 <= token < self.info.vocab_size for token in tokens), "a token id outside the vocabulary"
        self.calls.append(tuple(lengths))
        hidden: list[torch.Tensor] = []
        fresh = iter(tokens)
        rows = zip(cache.rows, cache.routes, cache.adopted, lengths, cache.inputs, strict=True)
        for row, routes, adopted, length, given in rows:
            may_go_on = not length or route is not None or not any(routes[adopted:])
            assert may_go_on, "the whole target goes on from what a route wrote"
            routes += [route] * length
            for _ in range(length):
                row.append(next(fresh))
                assert len(row) <= cache.capacity, "more tokens than the cache was made for"
                assert len(row) <= self.info.max_positions, "a position past the model's last one"
                hidden.append(self.logits_of((*given, *row), route))
        states = torch.stack(hidden) if hidden else torch.zeros(0, self.info.hidden_size)
        return states, tuple(states + layer for layer in capture)

    def weight(self, name: str) -> torch.Tensor:
        return torch.stack([seeded_normal(self.info.hidden_size, name, i) for i in range(self.info.vocab_size)])

    def head(self, hidden: torch.Tensor, reduce: str = "logits") -> torch.Tensor | list[int] | BestTwo:
        self.heads.append((reduce, hidden.shape[0]))
        if not bool(torch.isfinite(hidden).all()):
            raise NonFiniteError("the model's output is not finite: check its weights")
        return reduced(hidden.clone(), reduce)


def plain_tokens(
    target: StubTarget,
    prompt: Sequence[int],
    count: int,
    params: SamplingParams | None = None,
    noise: Noise | None = None,
    inputs: Sequence[int] = (),
) -> list[int]:
    """The `count` tokens that decoding one at a time gives, without a cache."""
    params = params or SamplingParams()
    noise = noise or Noise.of(params.seed, stream="verifier")
    tokens = list(prompt)
    for position in range(len(prompt), len(prompt) + count):
        logits = process(target.logits_of((*inputs, *tokens)), tokens, len(prompt), params)
        tokens.append(target_token(logits, params, noise, position))
    return tokens[len(prompt) :]


class ScriptedDrafter:
    """A drafter that follows `script(context, limit) -> Draft` and logs what it is told."""

    def __init__(
        self,
        script: Callable[[DraftContext, int], Draft],
        name: str = "scripted",
        capture: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.capture = capture
        self.readings: list[Reading] = []
        self.script = script
        self.proposed: list[tuple[int, Draft]] = []  # (key, draft)
        self.observed: list[tuple[int, Verdict]] = []  # (key, verdict)
        self.forgotten: list[int | None] = []  # keys of reset; None = all

    def propose(self, contexts: Sequence[DraftContext], limits: Sequence[int]) -> list[Draft]:
        drafts = [self.script(context, limit) for context, limit in zip(contexts, limits, strict=True)]
        for context, limit, draft in zip(contexts, limits, drafts, strict=True):
            assert len(draft.token_ids) <= limit, "a draft longer than its limit"
            self.proposed.append((context.key, draft))
        return drafts

    def read(self, readings: Sequence[Reading]) -> None:
        self.readings.extend(readings)

    def observe(self, keys: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        self.observed.extend(zip(keys, verdicts, strict=True))

    def reset(self, keys: Sequence[int] | None = None) -> None:
        self.forgotten.extend([None] if keys is None else keys)


def _own_tokens(target: StubTarget, context: DraftContext, count: int) -> list[int]:
    """What the target itself would emit next: exact when greedy or under gumbel coupling."""
    tokens = list(context.token_ids)
    for position in range(len(tokens), len(tokens) + count):
        logits = process(target.logits_of(tokens), tokens, context.num_prompt_tokens, context.sampling)
        tokens.append(target_token(logits, context.sampling, context.noise, position))
    return tokens[len(context.token_ids) :]


def oracle(target: StubTarget) -> ScriptedDrafter:
    """Proposes what the target would emit."""
    return ScriptedDrafter(lambda context, limit: Draft(tuple(_own_tokens(target, context, limit))), "oracle")


def wrong(target: StubTarget) -> ScriptedDrafter:
    """Proposes what the target would emit, plus 1: wrong at every slot."""
    return mixed(target, lambda context, limit: 0, name="wrong")


def mixed(
    target: StubTarget, right: Callable[[DraftContext, int], int] | None = None, name: str = "mixed"
) -> ScriptedDrafter:
    """Right for the first `right(context, limit)` tokens of a block (default: a pseudo-random number), then wrong."""

    def by_length(context: DraftContext, limit: int) -> int:
        return int(seeded_normal(1, context.key, len(context.token_ids)).abs() * 1000) % (limit + 1)

    def script(context: DraftContext, limit: int) -> Draft:
        count = (right or by_length)(context, limit)
        tokens: list[int] = []
        for slot in range(limit):
            so_far = DraftContext(
                context.key, (*context.token_ids, *tokens), context.num_prompt_tokens, context.sampling, context.noise
            )
            token = _own_tokens(target, so_far, 1)[0]
            tokens.append(token if slot < count else (token + 1) % target.info.vocab_size)
        return Draft(tuple(tokens))

    return ScriptedDrafter(script, name)


def empty() -> ScriptedDrafter:
    """Never proposes anything."""
    return ScriptedDrafter(lambda context, limit: Draft(()), "empty")


def drawn(distribution: Callable[[tuple[int, ...]], torch.Tensor]) -> ScriptedDrafter:
    """Draws each token from `distribution(history)` [vocab] with the context's noise, and reports just that."""

    def script(context: DraftContext, limit: int) -> Draft:
        tokens: list[int] = []
        rows: list[torch.Tensor] = []
        for _ in range(limit):
            history = (*context.token_ids, *tokens)
            rows.append(distribution(history))
            tokens.append(choose(rows[-1], context.sampling, context.noise, len(history)))
        return Draft(tuple(tokens), torch.stack(rows) if rows else None)

    return ScriptedDrafter(script, "drawn")


def speculate(
    verifier: Verifier,
    target: StubTarget,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    count: int,
    num_speculative_tokens: int,
    logprobs: int | None = None,
) -> tuple[list[list[int]], list[list[Verdict]]]:
    """`count` tokens for every row by draft and verify, and the verdicts of each row's rounds. Rows that are done are
    dropped; after every round the cache must hold exactly the other rows' tokens but the last."""
    rows = [list(prompt) for prompt in prompts]
    goals = [len(prompt) + count for prompt in prompts]
    noises = [Noise.of(each.seed, stream="verifier") for each in params]
    draft_noises = [noise.fork("drafter") for noise in noises]
    verdicts: list[list[Verdict]] = [[] for _ in rows]
    cache = target.begin(len(rows), max(goals))
    prefill(target, cache, rows, drafter, range(len(rows)))
    live = list(range(len(rows)))
    while live:
        contexts = [DraftContext(i, rows[i], len(prompts[i]), params[i], draft_noises[i], cache) for i in live]
        drafts = drafter.propose(contexts, [min(num_speculative_tokens, goals[i] - len(rows[i]) - 1) for i in live])
        asked = [VerifyRow(rows[i], len(prompts[i]), params[i], noises[i], logprobs) for i in live]
        found = verifier.verify(asked, drafts, cache, drafter.capture)
        drafter.observe(live, found)
        for i, verdict in zip(live, found, strict=True):
            rows[i].extend(verdict.token_ids)
            verdicts[i].append(verdict)
        assert cache.rows == [rows[i][:-1] for i in live], "the cache holds all tokens of each row but the last"
        kept = [place for place, i in enumerate(live) if len(rows[i]) < goals[i]]
        cache.keep(kept)
        live = [live[place] for place in kept]
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)], verdicts
