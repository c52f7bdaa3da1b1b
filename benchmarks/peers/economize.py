"""Worker: economize's training-free drafters on transformers: prompt lookup, and layers skipped."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.hf import load_model
from benchmarks.peers.serve import serve, timed

_CYCLE = 6  # tokens an exact pass verifies: five drafted and one more
_SKIPPED = 8
_models: dict[str, Any] = {}


def load(path: str, threads: int) -> dict[str, Any]:
    import economize
    from economize.techniques.layer_skip import LayerSkipConfig
    from economize.techniques.lookup import LookupConfig

    decoding = economize.DecodeConfig(cycle_length=_CYCLE)
    techniques = {
        "lookup": LookupConfig(),
        "layer_skip": LayerSkipConfig(num_skip=_SKIPPED, search="uniform"),
    }
    for name, technique in techniques.items():
        _models[name] = economize.apply(load_model(path, threads), technique, decoding=decoding)
    return {
        "versions": {"economize": economize.__version__},
        "settings": {"cycle_length": _CYCLE, "num_skip": _SKIPPED, "search": "uniform"},
    }


def generate(token_ids: list[int], max_tokens: int, eos_token_ids: list[int], technique: str) -> dict[str, Any]:
    import torch

    ids, model = torch.tensor(token_ids), _models[technique]
    return timed(lambda most: model.decode(ids, most, stop=eos_token_ids).tokens.tolist(), max_tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
