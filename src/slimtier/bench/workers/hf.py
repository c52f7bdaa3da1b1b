"""Worker: transformers' own generate in float32: plain, with its prompt lookup, assisted by another model or by its own
first layers."""

from __future__ import annotations

from typing import Any

from slimtier.bench.workers.serve import Clock, calls, serve, use_cores

_models: dict[str, Any] = {}  # "" is the target, others assist


def load(path: str, threads: int, attention: str = "eager") -> dict[str, Any]:
    import torch
    import transformers

    use_cores(threads)
    _models[""] = load_model(path, threads, attention)
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "settings": {"attention": attention, "precision": "fp32"},
    }


def load_model(path: str, threads: int, attention: str = "eager") -> Any:
    import torch
    import transformers

    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    kind: Any = transformers.AutoModelForCausalLM
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()


class _Blocks:
    """A streamer that tells the clock; transformers puts the prompt first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.blocks = -1

    def put(self, value: Any) -> None:
        if self.blocks >= 0:
            self.clock.block(value.flatten().tolist())
        self.blocks += 1

    def end(self) -> None:
        pass


def generate(
    token_ids: list[int],
    max_tokens: int,
    eos_token_ids: list[int],
    sampling: dict[str, Any],
    method: str = "plain",
    num_assistant_tokens: int = 5,
    exit_layer: int = 10,
    assistant: str = "",
) -> dict[str, Any]:
    """`method`: plain, lookup, early_exit or assisted (by the model in the directory `assistant`)."""
    import torch
    import transformers

    ids = torch.tensor([token_ids])
    methods: dict[str, Any] = {
        "plain": {},
        "lookup": {"prompt_lookup_num_tokens": num_assistant_tokens},
        "early_exit": {"assistant_early_exit": exit_layer},
    }
    if method == "assisted":
        methods[method] = {"assistant_model": _assistant(assistant, num_assistant_tokens)}
    if sampling:
        transformers.set_seed(sampling["seed"])
        methods[method] |= {"temperature": sampling["temperature"], "top_k": 0, "top_p": 1.0}
    clock = Clock()
    blocks = _Blocks(clock)
    with torch.inference_mode():
        _models[""].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=bool(sampling),
            eos_token_id=eos_token_ids,
            pad_token_id=eos_token_ids[0],
            streamer=blocks,
            **methods[method],
        )
    return clock.report(stats=calls(len(clock.token_ids), max(1, blocks.blocks)))


def logits(token_ids: list[int], stepwise: bool) -> list[float]:
    """Of the token after `token_ids`; stepwise: the last of them is fed alone, as plain decoding does."""
    import torch

    ids, past = torch.tensor([token_ids]), None
    with torch.inference_mode():
        if stepwise and len(token_ids) > 1:
            past = _models[""](ids[:, :-1], use_cache=True).past_key_values
            ids = ids[:, -1:]
        found = _models[""](ids, past_key_values=past, use_cache=True).logits[0, -1]
    return [float(value) for value in found]


def _assistant(path: str, tokens: int) -> Any:
    if path not in _models:
        import torch

        _models[path] = load_model(path, torch.get_num_threads())
        _models[path].generation_config.num_assistant_tokens = tokens
    return _models[path]


if __name__ == "__main__":
    serve({"load": load, "generate": generate, "logits": logits})
