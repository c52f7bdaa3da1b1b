"""Worker: slimtier itself, one model in one precision, with any drafters and verifiers."""

from __future__ import annotations

import json
import time
from itertools import zip_longest
from typing import Any

from slimtier.bench.workers.serve import Clock, serve, use_cores

_made: dict[str, Any] = {}  # the loaded model ("") and its options, drafters and verifiers by what was asked for


def load(model: str, precision: str, runtime: str, threads: int) -> dict[str, Any]:
    from slimtier.kernels import core
    from slimtier.loading import RunOptions
    from slimtier.loading import load as load_model
    from slimtier.provenance import version_of

    use_cores(threads)
    _made["options"] = RunOptions(runtime=runtime, precision=precision, threads=threads)
    _made[""] = load_model(model, _made["options"])
    info = _made[""].target.info
    return {
        "versions": {"slimtier": version_of("slimtier")},
        "settings": {"isa": core.isa(), "precision": info.precision},
    }


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any], **system: Any
) -> dict[str, Any]:
    """A fresh engine, so that nothing is reused from the prompt before; its drafter is made once, but for `auto`, which
    has learned from the prompts before."""
    engine = _engine(**system)
    clock, timers = Clock(), _Timers(engine)
    stream = engine.stream(token_ids, max_new_tokens=max_tokens, eos_token_ids=eos_token_ids, **sampling)
    for step in stream:
        if not clock.token_ids:
            timers.reset()
        clock.block(list(step.token_ids))
    result = stream.result
    assert result is not None
    stats = result.stats.to_dict()
    return clock.report(
        stats={
            key: stats[key] for key in stats if key.startswith(("num_", "mean_", "acceptance", "rejection", "target"))
        },
        time_split_s=timers.split(clock.decoding_s, result.stats),
        deciders=list(result.deciders),
    )


class _Timers:
    """The clocks of the compiled core: those of the target's passes and of the drafter's, since the first block."""

    def __init__(self, engine: Any) -> None:
        drafter = engine.drafter
        while hasattr(drafter, "inner"):
            drafter = drafter.inner
        drafter = getattr(drafter, "network", None) or drafter
        self._target = getattr(engine.target, "decoder", None)
        self._drafter = getattr(getattr(drafter, "runtime", None), "core", None)

    def reset(self) -> None:
        for core in (self._target, self._drafter):
            if core is not None:
                core.reset_timing()

    def split(self, decoding_s: float, stats: Any) -> dict[str, float]:
        """Where the seconds after the first block went. draft: what drafting took beside layer and head, such as
        looking for copies; other: sampling, the scan of a draft, and what Python does between."""
        if self._target is None:
            return dict(stats.time_split_s)
        verify = sum(self._target.timing().values()) / 1e9
        told = {} if self._drafter is None else self._drafter.timing()
        head = told.get("head", 0) / 1e9
        layer = sum(told.values()) / 1e9 - head
        rounds = max(1, stats.num_target_calls)
        draft = max(0.0, stats.time_split_s["draft"] * (rounds - 1) / rounds - head - layer)
        other = max(0.0, decoding_s - verify - head - layer - draft)
        return {"draft_layer": layer, "draft_head": head, "draft": draft, "verify": verify, "other": other}


def generate_batch(
    prompts: list[list[int]], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any], **system: Any
) -> dict[str, Any]:
    """All prompts as one batch: output tokens a second of the whole call, prompts' reading included."""
    engine = _engine(**system)
    started = time.perf_counter()
    results = engine.generate(prompts, max_new_tokens=max_tokens, eos_token_ids=eos_token_ids, **sampling)
    seconds = time.perf_counter() - started
    assert isinstance(results, list)
    tokens = [list(result.token_ids) for result in results]
    places = zip_longest(*(result.stats.accepted_per_position for result in results), fillvalue=0)
    return {
        "tokens_per_s": sum(map(len, tokens)) / seconds,
        "token_ids": tokens,
        "num_drafts": sum(result.stats.num_drafts for result in results),
        "accepted_per_position": [sum(place) for place in places],
    }


def log_likelihood(token_ids: list[int], answer: list[int]) -> dict[str, Any]:
    """The log probability of `answer` after `token_ids`, all tokens together, under the raw distribution."""
    import torch

    target = _made[""].target
    row = token_ids + answer
    hidden, _ = target.forward(row[:-1], target.begin(1, len(row)), [len(row) - 1])
    logits = target.head(hidden[len(token_ids) - 1 :]).float()
    chosen = torch.tensor(answer)
    return {"log_likelihood": float(torch.log_softmax(logits, -1)[torch.arange(len(answer)), chosen].double().sum())}


def audit(token_ids: list[int], answer: list[int]) -> dict[str, Any]:
    """The share of the answer's tokens that are not the target's argmax after the tokens before."""
    from slimtier.audit import audit as audit_answer

    return {"divergence": audit_answer(_made[""].target, token_ids, answer).mean}


def logits(token_ids: list[int], stepwise: bool) -> list[float]:
    """Of the token after `token_ids`; stepwise: the last of them is fed alone, as plain decoding does."""
    target = _made[""].target
    cache = target.begin(1, len(token_ids))
    parts = [token_ids[:-1], token_ids[-1:]] if stepwise and len(token_ids) > 1 else [token_ids]
    for part in parts:
        hidden, _ = target.forward(part, cache, [len(part)])
    return [float(value) for value in target.head(hidden[-1:])[0]]


def _engine(
    drafter: str,
    verifier: str = "lossless",
    settings: dict[str, Any] | None = None,
    num_speculative_tokens: int = 0,
    tiers: str = "",
    route: str = "",
) -> Any:
    from slimtier.engine import Engine
    from slimtier.registry import DRAFTERS, VERIFIERS, settings_of
    from slimtier.tiers import TIER_SETTINGS, join

    loaded, given = _made[""], settings or {}
    parts = []
    for name, entry in ((drafter, DRAFTERS[drafter]), (verifier, VERIFIERS[verifier])):
        key = json.dumps([name, given], sort_keys=True)
        if key not in _made or name == "auto":
            _made[key] = entry.build(loaded, settings_of(entry, given), _load_other)
        parts.append(_made[key])
    parts[0].reset()
    count = num_speculative_tokens or DRAFTERS[drafter].num_speculative_tokens
    if not tiers:
        return Engine(loaded.target, *parts, num_speculative_tokens=count)
    chosen = {key: value for key, value in given.items() if key in TIER_SETTINGS}
    joined = join(loaded.target, parts[0], count, tiers, route or None, chosen)
    return Engine(
        loaded.target,
        joined.drafter,
        joined.verifier,
        num_speculative_tokens=joined.num_speculative_tokens,
        tiers=tiers,
    )


def _load_other(other: str) -> Any:
    from slimtier.loading import load as load_model

    return load_model(other, _made["options"])


if __name__ == "__main__":
    operations = (load, generate, generate_batch, log_likelihood, audit, logits)
    serve({operation.__name__: operation for operation in operations})
