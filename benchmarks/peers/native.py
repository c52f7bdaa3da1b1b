"""Worker: slimtier itself, several precisions and drafters in one process."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.serve import Clock, serve

_loaded: dict[str, Any] = {}


def load(model: str, precisions: list[str], threads: int) -> dict[str, Any]:
    import slimtier
    from slimtier.kernels import core
    from slimtier.loading import RunOptions
    from slimtier.loading import load as load_model

    for precision in precisions:
        _loaded[precision] = load_model(model, RunOptions(precision=precision, threads=threads))
    return {"versions": {"slimtier": slimtier.__version__}, "isa": core.isa()}


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], precision: str, drafter: str
) -> dict[str, Any]:
    """A fresh engine, so that nothing is reused from the prompt before."""
    from slimtier.engine import Engine
    from slimtier.registry import DRAFTERS

    loaded, entry = _loaded[precision], DRAFTERS[drafter]
    made = entry.build(loaded, {}, lambda name: loaded)
    engine = Engine(loaded.target, made, num_speculative_tokens=entry.num_speculative_tokens)
    clock = Clock()
    stream = engine.stream(token_ids, max_new_tokens=max_tokens, eos_token_ids=eos_token_ids)
    for step in stream:
        clock.block(list(step.token_ids))
    assert stream.result is not None
    stats = stream.result.stats
    calls = stats.num_output_tokens / stats.num_target_calls
    return clock.report(mean_acceptance_length=stats.mean_acceptance_length, tokens_per_target_call=calls)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
