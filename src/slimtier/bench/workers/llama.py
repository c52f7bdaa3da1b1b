"""Worker: llama.cpp through llama-cpp-python, plain or with its prompt lookup, and its bare evaluation of T tokens."""

from __future__ import annotations

import time
from typing import Any

from slimtier.bench.workers.serve import Clock, calls, serve, use_cores

_PROBE_TOKENS = 32
_file: dict[str, Any] = {}
_models: dict[tuple[int, str, int], Any] = {}
_best: dict[str, int] = {}  # threads, by kind


def load(path: str, threads: int, context: int) -> dict[str, Any]:
    import llama_cpp

    use_cores(threads)
    _file.update(path=path, threads=threads, context=context)
    return {
        "versions": {"llama-cpp-python": llama_cpp.__version__},
        "settings": {"n_ctx": context, "precision": "the file's own"},
    }


def _model(threads: int, kind: str, drafted: int = 0) -> Any:
    """The model with `threads` for single tokens and all for several; the file is mapped, so copies cost little."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    key = threads, kind, drafted
    if key not in _models:
        _models[key] = llama_cpp.Llama(
            model_path=_file["path"],
            n_ctx=_file["context"],
            n_threads=threads,
            n_threads_batch=_file["threads"] if kind != "eval" else threads,
            logits_all=kind != "plain",  # lookup needs it: its default leaves no room for a prompt longer than a batch
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=drafted) if kind == "lookup" else None,
            verbose=False,
        )
    return _models[key]


def generate(
    token_ids: list[int],
    max_tokens: int,
    eos_token_ids: list[int],
    sampling: dict[str, Any],
    method: str = "plain",
    num_pred_tokens: int = 2,
) -> dict[str, Any]:
    """With as many threads as were fastest for the first prompt."""
    kind = f"{method} {num_pred_tokens}"
    if kind not in _best:
        speeds = {}
        for threads in range(1, _file["threads"] + 1):
            for _ in range(2):  # the first reads the file
                told = _write(_model(threads, method, num_pred_tokens), token_ids, _PROBE_TOKENS, [])
            speeds[threads] = told["tokens_per_s"] or 0.0
        _best[kind] = max(speeds, key=lambda count: speeds[count])
    told = _write(_model(_best[kind], method, num_pred_tokens), token_ids, max_tokens, eos_token_ids)
    return {**told, "threads": _best[kind]}


def _write(model: Any, token_ids: list[int], max_tokens: int, eos_token_ids: list[int]) -> dict[str, Any]:
    model.reset()
    evaluations = 0
    evaluate = model.eval

    def counted(tokens: Any) -> None:
        nonlocal evaluations
        evaluations += 1
        evaluate(tokens)

    model.eval = counted
    clock = Clock()
    tokens = model.generate(token_ids, temp=0.0, repeat_penalty=1.0)
    for token in tokens:
        clock.block([int(token)])
        if token in eos_token_ids or len(clock.token_ids) >= max_tokens:
            break
    tokens.close()
    del model.eval
    return clock.report(stats=calls(len(clock.token_ids), max(1, evaluations)))


def evaluate(prompt: list[int], token_ids: list[int], threads: int, repeats: int) -> dict[str, Any]:
    """Seconds to evaluate `token_ids` after `prompt`, with the logits of each, `repeats` times over."""
    model = _model(threads, "eval")
    if model.input_ids[: len(prompt)].tolist() != prompt or model.n_tokens < len(prompt):
        model.reset()
        model.eval(prompt)
    seconds = []
    for _ in range(repeats):
        model.n_tokens = len(prompt)  # eval removes what the cache holds past it
        started = time.perf_counter()
        model.eval(token_ids)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


if __name__ == "__main__":
    serve({"load": load, "generate": generate, "evaluate": evaluate})
