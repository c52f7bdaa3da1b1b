"""Worker: slimtier itself, several precisions and drafters in one process."""

from __future__ import annotations

import json
import time
from itertools import zip_longest
from typing import Any

from benchmarks.peers.serve import Clock, serve

_loaded: dict[str, Any] = {}
_drafters: dict[str, Any] = {}


def load(model: str, precisions: list[str], threads: int) -> dict[str, Any]:
    import slimtier
    from slimtier.kernels import core
    from slimtier.loading import RunOptions
    from slimtier.loading import load as load_model

    for precision in precisions:
        _loaded[precision] = load_model(model, RunOptions(precision=precision, threads=threads))
    return {"versions": {"slimtier": slimtier.__version__}, "isa": core.isa()}


def generate(
    token_ids: list[int],
    max_tokens: int,
    eos_token_ids: list[int],
    precision: str,
    drafter: str,
    settings: dict[str, Any] | None = None,
    length: int | None = None,
    sampling: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A fresh engine, so that nothing is reused from the prompt before; its drafter is made once. `length`: how far it
    drafts at most (None: as suits it)."""
    engine = _engine(precision, drafter, settings or {}, length)
    clock = Clock()
    stream = engine.stream(token_ids, max_new_tokens=max_tokens, eos_token_ids=eos_token_ids, **(sampling or {}))
    for step in stream:
        clock.block(list(step.token_ids))
    assert stream.result is not None
    stats = stream.result.stats
    calls = stats.num_output_tokens / stats.num_target_calls
    return clock.report(
        mean_acceptance_length=stats.mean_acceptance_length,
        tokens_per_target_call=calls,
        num_drafts=stats.num_drafts,
        accepted_per_position=list(stats.accepted_per_position),
        time_split_s=dict(stats.time_split_s),
    )


def generate_batch(
    prompts: list[list[int]],
    max_tokens: int,
    eos_token_ids: list[int],
    precision: str,
    drafter: str,
    settings: dict[str, Any] | None = None,
    length: int | None = None,
    sampling: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All prompts as one batch: output tokens a second of the whole call, prompts' reading included."""
    engine = _engine(precision, drafter, settings or {}, length)
    started = time.perf_counter()
    results = engine.generate(prompts, max_new_tokens=max_tokens, eos_token_ids=eos_token_ids, **(sampling or {}))
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


def _engine(precision: str, drafter: str, settings: dict[str, Any], length: int | None) -> Any:
    from slimtier.engine import Engine
    from slimtier.registry import DRAFTERS

    loaded, entry = _loaded[precision], DRAFTERS[drafter]
    name = json.dumps([precision, drafter, settings])
    if name not in _drafters or drafter == "auto":  # which has learned from the prompts before
        _drafters[name] = entry.build(loaded, settings, lambda other: loaded)
    _drafters[name].reset()
    return Engine(loaded.target, _drafters[name], num_speculative_tokens=length or entry.num_speculative_tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate, "generate_batch": generate_batch})
