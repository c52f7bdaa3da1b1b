"""Worker: llama.cpp through llama-cpp-python, plain or with its prompt lookup, and its bare evaluation of T tokens."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.serve import Clock, serve

# llama-cpp-python's documentation recommends 2 for machines without a GPU (its default is 10)
_LOOKUP_TOKENS = 2
_file: dict[str, Any] = {}
_models: dict[tuple[int, str], Any] = {}


def load(path: str, threads: int, context: int) -> dict[str, Any]:
    import llama_cpp

    _file.update(path=path, threads=threads, context=context)
    return {
        "versions": {"llama-cpp-python": llama_cpp.__version__},
        "settings": {"num_pred_tokens": _LOOKUP_TOKENS, "n_ctx": context},
    }


def _model(threads: int, kind: str) -> Any:
    """The model with `threads` for single tokens and all for several; the file is mapped, so copies cost little."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    if (threads, kind) not in _models:
        _models[threads, kind] = llama_cpp.Llama(
            model_path=_file["path"],
            n_ctx=_file["context"],
            n_threads=threads,
            n_threads_batch=_file["threads"] if kind != "eval" else threads,
            logits_all=kind != "plain",  # lookup needs it: its default leaves no room for a prompt longer than a batch
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=_LOOKUP_TOKENS) if kind == "lookup" else None,
            verbose=False,
        )
    return _models[threads, kind]


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], lookup: bool, threads: int
) -> dict[str, Any]:
    model = _model(threads, "lookup" if lookup else "plain")
    model.reset()
    calls = 0
    evaluate = model.eval

    def counted(tokens: Any) -> None:
        nonlocal calls
        calls += 1
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
    return clock.report(tokens_per_target_call=len(clock.token_ids) / max(1, calls))


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
