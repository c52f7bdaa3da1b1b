"""A tiny target and a tokenizer with a chat template, for capturing."""

from __future__ import annotations

from pathlib import Path

from slimtier.loading import Loaded
from slimtier.models.native import NativeTarget
from slimtier.models.resolve import ModelFiles
from slimtier.models.tokenizer import Tokenizer
from tests.models import native_models
from tests.small_tokenizer import small_tokenizer

EOS = 2
CHATML = (
    "{% for m in messages %}{{ '<bos>' + m['role'] + ' ' + m['content'] + '<eos> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant ' }}{% endif %}"
)
# what was thought before an answer is left out once the conversation goes on
REWRITING = CHATML.replace("m['content']", "(m['content'] if loop.last else m['content'].split('a')[-1])")


def tokenizer(template: str | None = CHATML) -> Tokenizer:
    backend = small_tokenizer(96).backend_tokenizer
    return Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<eos>"}, (EOS,), template)


def files(directory: Path) -> ModelFiles:
    native_models.save("llama", directory)
    return ModelFiles("tiny", "safetensors", directory)


def loaded(directory: Path, template: str | None = CHATML) -> Loaded:
    return Loaded(NativeTarget.from_pretrained(files(directory), precision="fp32", threads=1), tokenizer(template))
