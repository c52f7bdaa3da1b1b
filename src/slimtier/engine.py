"""What a user holds: a model, a drafter and a verifier, ready to answer."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from slimtier import decode
from slimtier.drafters.base import Drafter, Reading
from slimtier.drafters.none import NoDrafter
from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded, RunOptions, load
from slimtier.models.base import Cache, Target
from slimtier.options import Options, read_options
from slimtier.prompts import Prompt, Tokenizer, encode_prompt, split_prompts
from slimtier.registry import DRAFTERS, VERIFIERS, check_settings, settings_of
from slimtier.result import Result, RunInfo, Stream
from slimtier.sampling import Noise
from slimtier.sequence import Request, Sequence, Step
from slimtier.stats import Stats
from slimtier.text import TextStream
from slimtier.tiers import TIER_SETTINGS, Joined, join
from slimtier.types import SamplingParams
from slimtier.verifiers.base import Verifier
from slimtier.verifiers.lossless import LosslessVerifier

SPECULATIVE_TOKENS = 5
ROOM = 2048  # tokens a cache that may be reused has room for at least: the next turns of a chat


@dataclass(frozen=True, slots=True)
class Kept:
    """The cache of the last single-row request, the tokens it may hold, and the key its drafter knows it by."""

    key: int
    token_ids: list[int]
    cache: Cache
    capacity: int


class Engine:
    """Answers prompts with speculative decoding.

    >>> engine = Engine.from_pretrained("smollm2-135m", drafter="ngram")
    >>> engine.generate([{"role": "user", "content": "Why is the sky blue?"}], max_new_tokens=64).text

    An engine serves one thread; its streams may be interleaved.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        num_speculative_tokens: int = SPECULATIVE_TOKENS,
        threads: int | None = None,
        tiers: str | None = None,
    ) -> None:
        """An engine of parts that exist. Without a tokenizer prompts are token ids and results have no text.
        `threads`: of torch while decoding (a native CPU target has threads of its own, and torch then gets one)."""
        check_count(num_speculative_tokens)
        self.target = target
        self.drafter: Drafter = drafter or NoDrafter()
        self.verifier: Verifier = verifier or LosslessVerifier(target)
        self.tokenizer = tokenizer
        self.num_speculative_tokens = num_speculative_tokens
        self.tiers = tiers  # what it was made with, for its results
        self._torch_threads = 1 if target.info.exact else threads
        self._is_encoder_decoder = bool(getattr(target, "is_encoder_decoder", False))
        self._keys = itertools.count()
        self._kept: Kept | None = None

    @classmethod
    def from_pretrained(
        cls,
        model: Any,
        *,
        drafter: str = "auto",
        verifier: str = "lossless",
        precision: str = "auto",
        runtime: str = "auto",
        threads: int | None = None,
        device: str = "cpu",
        num_speculative_tokens: int | None = None,
        tiers: str | None = None,
        route: str | None = None,
        **settings: Any,
    ) -> Engine:
        """Load a model: an alias, a directory, a .gguf file or a hub id.

        drafter: auto (draft, and the settings of ngram), eagle3 (draft=DIRECTORY, confidence, draft_precision), ngram
        (min_ngram, max_ngram), draft_model (draft_model=PATH), layer_skip (skip_layers="5,16"), none; left out, draft
        is the one shipped for the model. num_speculative_tokens: how far it drafts at most (None: as suits the
        drafter). precision: auto, fp32, bf16, q8, q4. verifier: lossless; lenient (lenience=...) and cascade (rule=...,
        alpha=...) are lossy. tiers: exact (flush=...) and observe, and the lossy paper (gate=..., accept=...,
        escalate=..., margin=..., literal=..., reread=...) and calibrated, put a slim verifier between drafter and
        target, which is the target on a route: none, q4, q8, skip:RATIO or a file.
        Raises ConfigError for a name or setting that is unknown or does not fit, before anything is loaded.
        """
        check_settings(drafter, verifier, settings, tiers, route)
        if num_speculative_tokens is None:
            num_speculative_tokens = DRAFTERS[drafter].num_speculative_tokens
        check_count(num_speculative_tokens)
        options = RunOptions(runtime, precision, threads, device)
        loaded = load(model, options)

        def load_other(other: str) -> Loaded:
            return load(other, options)

        drafting, verifying = DRAFTERS[drafter], VERIFIERS[verifier]
        drafting_with = drafting.build(loaded, settings_of(drafting, settings), load_other)
        if tiers is None:
            verifying_with = verifying.build(loaded, settings_of(verifying, settings), load_other)
            joined = Joined(drafting_with, verifying_with, num_speculative_tokens)
        else:
            given = {name: settings[name] for name in settings if name in TIER_SETTINGS}
            joined = join(loaded.target, drafting_with, num_speculative_tokens, tiers, route, given)
        return cls(
            loaded.target,
            joined.drafter,
            joined.verifier,
            tokenizer=loaded.tokenizer,
            num_speculative_tokens=joined.num_speculative_tokens,
            threads=threads,
            tiers=tiers,
        )

    def generate(self, prompt: Any, sampling: SamplingParams | None = None, **options: Any) -> Result | list[Result]:
        """Answer a text (continued as it stands), messages (through the chat template), token ids, or a list of these.

        Options: the fields of SamplingParams (temperature, top_p, seed, ...) and of StopParams (max_new_tokens, stop,
        eos_token_ids, ignore_eos), `logprobs` (report the top n) and `n` (how many answers). One prompt with n=1 gives
        a Result; otherwise a list, prompt by prompt. Raises InputError or ConfigError before any work starts.
        """
        prompts, many = split_prompts(prompt)
        asked = read_options(options, sampling, self.target.info.vocab_size)
        rows = self._rows(prompts, asked)
        for _ in self._run(rows, asked.n):
            pass
        results = [self._result(row) for row in rows]
        return results if many or asked.n > 1 else results[0]

    def stream(self, prompt: Any, sampling: SamplingParams | None = None, **options: Any) -> Stream:
        """The same for one prompt, as it is written. Closing the stream cancels the request."""
        prompts, many = split_prompts(prompt)
        asked = read_options(options, sampling, self.target.info.vocab_size)
        if many or asked.n > 1:
            raise InputError("a stream is of one prompt and one answer: call it once for each, or use generate")
        rows = self._rows(prompts, asked)
        return Stream(self._run(rows, 1), partial(self._result, rows[0]))

    def _rows(self, prompts: Seq[Prompt], options: Options) -> list[Sequence]:
        """A row for each prompt and answer, prompt by prompt."""
        info = self.target.info
        if options.stop.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer, and this engine has none: use eos_token_ids")
        rows = []
        for prompt in prompts:
            ids = encode_prompt(prompt, self.tokenizer, info.vocab_size)
            if len(ids) >= info.max_positions:
                raise InputError(
                    f"the prompt has {len(ids)} tokens and the model's context holds {info.max_positions}, "
                    "the answer included: shorten the prompt"
                )
            given = options.sampling.seed
            sampling = replace(options.sampling, seed=secrets.randbits(63) if given is None else given)
            rows += [self._row(ids, replace(options, sampling=sampling), index) for index in range(options.n)]
        return rows

    def _row(self, ids: list[int], options: Options, index: int) -> Sequence:
        stop, own = options.stop, () if self.tokenizer is None else self.tokenizer.eos_token_ids
        eos = {*self.target.info.eos_token_ids, *own} if stop.eos_token_ids is None else stop.eos_token_ids
        noise = Noise.of(options.sampling.seed, index, "verifier")
        request = Request(
            sampling=options.sampling,
            stop=stop,
            eos_token_ids=frozenset(() if stop.ignore_eos else eos),
            context=self.target.info.max_positions,
            target_noise=noise,
            draft_noise=noise.fork("drafter"),
            logprobs=options.logprobs,
        )
        text, key = TextStream(self.tokenizer, stop.stop), next(self._keys)
        if self._is_encoder_decoder:
            start = self.target.decoder_start_token_id  # type: ignore[attr-defined]
            return Sequence(key, request, [start], text, inputs=tuple(ids))
        return Sequence(key, request, list(ids), text)

    def _run(self, rows: list[Sequence], n: int) -> Generator[Step]:
        """Decode the rows (n for each prompt, forked after the prefill), with torch's threads set while it works."""
        steps = self._steps(rows, n)
        try:
            while True:
                with torch_threads(self._torch_threads):
                    step = next(steps, None)
                if step is None:
                    return
                yield step
        finally:
            steps.close()

    def _steps(self, rows: list[Sequence], n: int) -> Generator[Step]:
        if all(row.finish_reason is not None for row in rows):  # max_new_tokens=0
            return
        cache, capacity = self._begin(rows[::n])
        drafter, keys = self.drafter, [row.key for row in rows]
        keeps = len(rows) == 1 and self._may_reuse
        try:
            self._prefill(rows[::n], cache)
            if n > 1:
                decode.fork(cache, drafter, rows, n)
            speculative_tokens = self.num_speculative_tokens
            yield from decode.generate(drafter, self.verifier, cache, rows, speculative_tokens, keep=keeps)
        finally:  # however it ended: what a broken-off round left past the tokens is cropped at the next request
            if keeps:
                self._forget_kept()
                self._kept = Kept(rows[0].key, rows[0].token_ids, cache, capacity)
            elif drafter.capture:
                drafter.reset(keys)

    def _prefill(self, rows: Seq[Sequence], cache: Cache) -> None:
        prompts, keys = [row.token_ids for row in rows], [row.key for row in rows]
        if len(rows) > 1 and self._may_reuse:
            shared = decode.read_shared(self.target, cache, prompts, self.drafter, keys)
            for row in rows[1:]:
                row.num_cached_tokens = shared
        decode.prefill(self.target, cache, prompts, self.drafter, keys)

    def _forget_kept(self) -> None:
        if self._kept is not None and self.drafter.capture:
            self.drafter.reset([self._kept.key])
        self._kept = None

    @property
    def _may_reuse(self) -> bool:
        """Whether a cache continued is a cache computed afresh, bit for bit."""
        return self.target.info.exact and not self._is_encoder_decoder

    def _begin(self, rows: Seq[Sequence]) -> tuple[Cache, int]:
        """A cache for the rows and its capacity: the last one, cropped to the common prefix, if it fits."""
        needed = max(len(row.token_ids) + row.left() for row in rows)
        if len(rows) > 1 or not self._may_reuse:
            inputs = [row.inputs for row in rows] if self._is_encoder_decoder else None
            return self.target.begin(len(rows), needed, inputs), needed
        row, kept = rows[0], self._kept
        if kept is not None and needed <= kept.capacity:
            shared = decode.common_length([kept.token_ids[: kept.cache.lengths[0]], row.token_ids[:-1]])
            shared = min(shared, kept.cache.verified[0])  # not what a slim verifier wrote
            if self.drafter.capture:  # it pairs a position's features with the token after, which must be shared too
                shared = max(shared - 1, 0)
                self.drafter.read([Reading(row.key, row.token_ids, shared, source=kept.key)])
            row.num_cached_tokens = shared
            kept.cache.crop([shared])
            self._forget_kept()
            return kept.cache, kept.capacity
        self._forget_kept()
        capacity = min(self.target.info.max_positions, max(ROOM, 2 * needed))
        return self.target.begin(1, capacity), capacity

    def _result(self, row: Sequence) -> Result:
        assert row.finish_reason is not None
        info, output = self.target.info, row.output_ids
        assert row.request.sampling.seed is not None
        return Result(
            token_ids=tuple(output),
            text=row.text.text,
            finish_reason=row.finish_reason,
            stats=Stats.of(row.counters, len(row.inputs) or row.num_prompt_tokens, row.num_cached_tokens, len(output)),
            deciders=tuple(row.deciders),
            logprobs=tuple(row.logprobs),
            seed=row.request.sampling.seed,
            run=RunInfo(
                info.name,
                info.runtime,
                info.precision,
                self.drafter.name,
                self.verifier.name,
                self.verifier.lossless,
                self.tiers,
            ),
        )


def check_count(num_speculative_tokens: object) -> None:
    count = num_speculative_tokens
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"num_speculative_tokens is {count!r}: give a whole number, 0 (no drafting) or more")


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Torch's threads set to `count` for the block (None: left alone)."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
