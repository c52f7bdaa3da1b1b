"""Tiny targets and capture directories whose text a draft can learn."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

HIDDEN, HEADS, KV_HEADS, WIDE, LAYERS = 32, 4, 2, 48, 4
VOCAB, TOP, STREAMS = 64, 8, 3


@dataclass
class Recipe:
    """rows: lengths of (prompt, answer) turns of each row. After token i comes 5 i + 3 mod vocab, which is the target's
    first choice too, and the features of a position tell it of the token after the next. nan_row: whose features hold
    a NaN."""

    rows: list[list[tuple[int, int]]]
    shards: int = 1
    seed: int = 0
    vocab: int = VOCAB
    hidden: int = HIDDEN
    top: int = TOP
    nan_row: int | None = None


def some_rows(count: int, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Rows of one or two turns of a few tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    return [[(draw(3, 7), draw(4, 12)) for _ in range(1 + index % 2)] for index in range(count)]


def write_target(directory: Path, vocab: int = VOCAB) -> Path:
    """A Llama of random weights as a directory of safetensors; its tokens are <eos> (2), a (5), b (9) and words."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN,
        "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": True, "rope_theta": 10000.0, "eos_token_id": 2,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    dim = HIDDEN // HEADS
    shapes = {"model.embed_tokens": (vocab, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * dim, HIDDEN), "self_attn.v_proj": (KV_HEADS * dim, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
            "mlp.down_proj": (HIDDEN, WIDE),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 if len(shape) == 2 else torch.ones(shape)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors")
    words = {"<eos>": 2, "a": 5, "b": 9}
    words |= {f"w{index}": index for index in range(vocab) if index not in words.values()}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.add_special_tokens(["<eos>"])
    backend.save(str(directory / "tokenizer.json"))
    return directory


def write_capture(directory: Path, recipe: Recipe) -> Path:
    """Write the shards, their list and the statistics."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "capture.json").write_text(
        json.dumps(
            {
                "format": 1,
                "model": "tiny",
                "precision": "fp32",
                "tokenizer_sha256": None,
                "vocab_size": recipe.vocab,
                "hidden_size": recipe.hidden,
                "num_layers": LAYERS,
                "layers": [0, 1, 2],
                "top_n": recipe.top,
                "seed": recipe.seed,
                "temperatures": [0.0],
                "prompts_sha256": "0",
                "provenance": {"commit": None},
            }
        )
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    lines = []
    for shard in range(recipe.shards):
        name = f"shard-{shard:05d}.safetensors"
        tensors = _shard(recipe, range(shard, len(recipe.rows), recipe.shards), generator)
        save_file(tensors, directory / name)
        digest = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        counts = {"rows": len(tensors["offsets"]) - 1, "positions": len(tensors["token_ids"])}
        lines.append({"name": name, "sha256": digest, "answer_tokens": len(tensors["top_ids"]), **counts})
    (directory / "shards.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    save_file(_statistics(recipe, generator), directory / "statistics.safetensors")
    return directory


def _shard(recipe: Recipe, rows: range, generator: torch.Generator) -> dict[str, torch.Tensor]:
    texts, answers, features = [], [], []
    code = torch.randn(recipe.vocab, recipe.hidden, generator=torch.Generator().manual_seed(2))
    for row in rows:
        size = sum(prompt + answer for prompt, answer in recipe.rows[row])
        marks = [mark for prompt, answer in recipe.rows[row] for mark in [0] * prompt + [1] * answer]
        text = [int(torch.randint(recipe.vocab, (1,), generator=generator))]
        while len(text) < size:
            text.append((5 * text[-1] + 3) % recipe.vocab)
        texts.append(torch.tensor(text, dtype=torch.int32))
        answers.append(torch.tensor(marks, dtype=torch.uint8))
        features.append(0.3 * torch.randn(size, STREAMS * recipe.hidden, generator=generator))
        features[-1][:-1, : recipe.hidden] += code[(5 * texts[-1][1:].long() + 3) % recipe.vocab]
        features[-1] = features[-1].half()
        if row == recipe.nan_row:
            features[-1][1, 2] = float("nan")
    answer, text = torch.cat(answers), torch.cat(texts)
    first = text[answer.bool()].long()
    others = torch.randint(1, recipe.vocab, (len(first), recipe.top - 1), generator=generator).sort(1).values
    top_ids = torch.cat((first[:, None], (first[:, None] + _distinct(others, recipe.vocab)) % recipe.vocab), dim=1)
    probs = torch.cat((torch.tensor([0.8]), 0.15 * 0.5 ** torch.arange(1, recipe.top)))
    return {
        "token_ids": text,
        "offsets": torch.tensor([0, *map(len, texts)]).cumsum(0),
        "features": torch.cat(features),
        "answer": answer,
        "top_ids": top_ids.int(),
        "top_logprobs": probs.log().half().expand(len(first), -1).contiguous(),
    }


def _distinct(ordered: torch.Tensor, vocab: int) -> torch.Tensor:
    """Ascending offsets [A, n - 1] made distinct, within 1 ... vocab - 1."""
    rising = torch.arange(ordered.shape[1])
    return (ordered * (vocab - 1 - len(rising)) // vocab) + rising + 1


def _statistics(recipe: Recipe, generator: torch.Generator) -> dict[str, torch.Tensor]:
    count, hidden = 500, recipe.hidden
    x = torch.randn(count, (1 + STREAMS) * hidden, generator=generator, dtype=torch.float64)
    y = x[:, :hidden] + 0.5 * x[:, hidden : 2 * hidden]
    return {"xtx": x.T @ x, "xty": x.T @ y, "yty": y.T @ y, "count": torch.tensor([count])}
