"""Worker: transformers in eager mode, plain or with its prompt lookup."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.serve import Clock, serve

_LOOKUP_TOKENS = 5
_model: Any = None


def load(path: str, threads: int) -> dict[str, Any]:
    import torch
    import transformers

    global _model
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    _model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "settings": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS},
    }


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


def generate(token_ids: list[int], max_tokens: int, eos_token_ids: list[int], lookup: bool) -> dict[str, Any]:
    import torch

    ids = torch.tensor([token_ids])
    options = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS} if lookup else {}
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
            **options,
        )
    return clock.report(tokens_per_target_call=len(clock.token_ids) / max(1, blocks.blocks))


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
