"""Worker: transformers in eager mode: plain, with its prompt lookup, or assisted by its own first layers."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.serve import Clock, serve

_LOOKUP_TOKENS = 5
_EXIT = 10  # layers that assist
_model: Any = None


def load(path: str, threads: int) -> dict[str, Any]:
    import torch
    import transformers

    global _model
    _model = load_model(path, threads)
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "settings": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS, "assistant_early_exit": _EXIT},
    }


def load_model(path: str, threads: int) -> Any:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


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


def generate(token_ids: list[int], max_tokens: int, eos_token_ids: list[int], method: str) -> dict[str, Any]:
    """`method`: plain, lookup or early_exit."""
    import torch

    ids = torch.tensor([token_ids])
    methods = {
        "plain": {},
        "lookup": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS},
        "early_exit": {"assistant_early_exit": _EXIT},
    }
    clock = Clock()
    blocks = _Blocks(clock)
    with torch.inference_mode():
        _model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos_token_ids,
            pad_token_id=eos_token_ids[0],
            streamer=blocks,
            **methods[method],
        )
    return clock.report(tokens_per_target_call=len(clock.token_ids) / max(1, blocks.blocks))


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
