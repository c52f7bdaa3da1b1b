"""Worker: economize's training-free drafters on transformers: prompt lookup, and layers skipped."""

from __future__ import annotations

from typing import Any

from slimtier.bench.workers.hf import load_model
from slimtier.bench.workers.serve import serve, timed, use_cores

_CYCLE = 6  # tokens an exact pass verifies: five drafted and one more
_SKIPPED = 8
_model: list[Any] = []


def load(path: str, threads: int, technique: str = "lookup") -> dict[str, Any]:
    import economize
    from economize.techniques.layer_skip import LayerSkipConfig
    from economize.techniques.lookup import LookupConfig

    use_cores(threads)
    kinds = {"lookup": LookupConfig(), "layer_skip": LayerSkipConfig(num_skip=_SKIPPED, search="uniform")}
    decoding = economize.DecodeConfig(cycle_length=_CYCLE)
    _model.append(economize.apply(load_model(path, threads), kinds[technique], decoding=decoding))
    settings: dict[str, Any] = {"cycle_length": _CYCLE, "precision": "fp32"}
    if technique == "layer_skip":
        settings |= {"num_skip": _SKIPPED, "search": "uniform"}
    return {"versions": {"economize": economize.__version__}, "settings": settings}


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any]
) -> dict[str, Any]:
    import torch

    ids, model = torch.tensor(token_ids), _model[0]
    return timed(lambda most: model.decode(ids, most, stop=eos_token_ids).tokens.tolist(), max_tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
