"""Worker: flashspec's prompt lookup on transformers."""

from __future__ import annotations

from typing import Any

from slimtier.bench.workers.hf import load_model
from slimtier.bench.workers.serve import serve, timed, use_cores

_engine: Any = None


def load(path: str, threads: int) -> dict[str, Any]:
    import flashspec
    import torch
    from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine import NgramDrafter, TargetModel

    global _engine
    use_cores(threads)
    device = torch.device("cpu")
    target = TargetModel(path, device, torch.float32, model=load_model(path, threads))
    config = FlashSpecConfig(
        device="cpu",
        drafter_strategy="bandit",
        bandit=BanditConfig(n_arms=1),
        sampling=SamplingConfig(temperature=0.0),
    )
    _engine = SpeculativeEngine(config, [NgramDrafter()], target)
    return {
        "versions": {"flashspec": flashspec.__version__},
        "settings": {"gamma": config.sampling.gamma, "precision": "fp32"},
    }


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any]
) -> dict[str, Any]:
    import torch

    ids = torch.tensor([token_ids])

    def write(most: int) -> list[int]:
        written = _engine.generate(ids, max_new_tokens=most, eos_token_ids=eos_token_ids).output_ids[0].tolist()
        return [token for token in written if token >= 0]  # -1 is padding

    return timed(write, max_tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
