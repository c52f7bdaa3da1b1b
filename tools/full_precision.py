"""Write a quantised file's numbers as a directory of float32 safetensors, as transformers reads them.

    python tools/full_precision.py smollm2-135m build/smollm2-135m

For measuring on a full-precision checkpoint where only the quantised file is at hand: the same model, number by number,
but its weights are floats in memory and a step is bound by reading them.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Refuses a place that is there already."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", help="a GGUF file, or a name for one")
    options.add_argument("out", type=Path)
    given = options.parse_args()
    if given.out.exists():
        options.error(f"{given.out} exists")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from slimtier.models.resolve import resolve

    path = resolve(given.model).path
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    beside = given.out.with_name(given.out.name + ".part")
    AutoTokenizer.from_pretrained(**where).save_pretrained(beside)
    model.config.__dict__.pop("quantization_config", None)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(beside)
    save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
    beside.rename(given.out)


if __name__ == "__main__":
    main()
