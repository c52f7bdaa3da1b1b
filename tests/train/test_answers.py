"""Continuous batching gives each conversation what it would have got alone, and keeps what was computed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slimtier.errors import InputError
from slimtier.loading import Loaded
from slimtier.train.answer_settings import AnswerSettings, layers_of
from slimtier.train.answered import Answered
from slimtier.train.answers import AnswerWriter
from slimtier.train.prompts import Conversation
from slimtier.train.turns import Dialogue
from tests.train import dialogues

SETTINGS = AnswerSettings(
    layers=(0, 1, 3), top_n=8, max_new_tokens=24, max_prompt_tokens=80, max_positions=200, rows=4, seed=3
)
TEXTS = ("tell me", "the story of the rain and the sea", "a", "no more", "hear this", "rise")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return dialogues.loaded(tmp_path_factory.mktemp("tiny"))


def scripts(model: Loaded, texts: tuple[str, ...] = TEXTS) -> Iterator[tuple[int, Dialogue]]:
    for number, text in enumerate(texts):
        yield number, Dialogue(model.tokenizer, Conversation("s", (text, "go on")), drawn=number % 2)


def write(model: Loaded, settings: AnswerSettings, only: int | None = None) -> dict[int, Answered]:
    writer = AnswerWriter(model.target, settings, (dialogues.EOS,))
    wanted = ((number, script) for number, script in scripts(model) if only in (None, number))
    return {row.number: row for row in writer.write(wanted)}


def same(a: Answered, b: Answered) -> bool:
    names = ("token_ids", "answer", "features", "top_ids", "top_logprobs", "final")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def test_a_row_is_the_same_alone_in_any_batch_and_at_a_second_call(model: Loaded) -> None:
    together = write(model, SETTINGS)
    assert sorted(together) == list(range(len(TEXTS)))
    again = write(model, SETTINGS)
    narrow = write(model, replace(SETTINGS, rows=1))
    for number, row in together.items():
        alone = write(model, SETTINGS, number)[number]
        assert same(row, alone)
        assert same(row, again[number])
        assert same(row, narrow[number])


def test_what_is_kept_is_what_one_forward_over_the_finished_row_gives(model: Loaded) -> None:
    for row in write(model, SETTINGS).values():
        ids = row.token_ids.tolist()
        cache = model.target.begin(1, 256)
        hidden, features = model.target.forward(ids, cache, [len(ids)], capture=SETTINGS.layers)
        assert torch.equal(row.features[:-1], torch.cat([f.half() for f in features], dim=1)[:-1])
        assert torch.equal(row.final, hidden[:-1])
        places = row.answer.nonzero()[:, 0] - 1  # an answer token was drawn from the position before it
        best = model.target.head(hidden[places]).log_softmax(1).topk(SETTINGS.top_n, dim=1)
        assert torch.equal(row.top_ids.long(), best.indices)
        assert torch.allclose(row.top_logprobs.float(), best.values, atol=4e-3)
        greedy = row.number % len(SETTINGS.temperatures) in (0, 2)
        drawn = row.token_ids[row.answer.bool()]
        assert bool((drawn == row.top_ids[:, 0]).all()) or not greedy


def test_temperature_draws_from_the_kept_tokens_and_seeds_repeat(model: Loaded) -> None:
    hot = replace(SETTINGS, temperatures=(1.0,))
    first, second = write(model, hot), write(model, replace(hot, seed=4))
    assert any(not torch.equal(first[n].token_ids, second[n].token_ids) for n in first)
    for row in first.values():
        drawn = row.token_ids[row.answer.bool()]
        assert bool((row.top_ids == drawn[:, None]).any(1).all())


def test_a_long_prompt_and_a_state_that_overflows_are_dropped_and_counted(model: Loaded) -> None:
    writer = AnswerWriter(model.target, replace(SETTINGS, max_prompt_tokens=20), (dialogues.EOS,))
    kept = {row.number for row in writer.write(scripts(model))}
    assert 1 not in kept
    assert writer.dropped == {"the prompt is longer than max_prompt_tokens": len(TEXTS) - len(kept)}


def test_layers_are_checked() -> None:
    assert layers_of((1, 4, 9), 12) == (1, 4, 9)
    for wrong in ((), (4, 1), (1, 1), (-1, 2), (1, 12)):
        with pytest.raises(InputError, match="cannot be captured"):
            layers_of(wrong, 12)


def test_another_runtime_writes_the_same_answers(tmp_path: Path) -> None:
    from slimtier.models.native import open_weights
    from slimtier.models.native_torch import TorchTarget

    native = dialogues.loaded(tmp_path)
    weights = open_weights(dialogues.ModelFiles("tiny", "safetensors", tmp_path))
    torch_target = TorchTarget(weights, name="tiny", precision="fp32", device="cpu")
    ours, theirs = write(native, SETTINGS), write(Loaded(torch_target, native.tokenizer), SETTINGS)
    for number, row in ours.items():
        assert row.token_ids.tolist() == theirs[number].token_ids.tolist()
        assert torch.allclose(row.features.float(), theirs[number].features.float(), atol=2e-2)
        assert torch.allclose(row.top_logprobs.float(), theirs[number].top_logprobs.float(), atol=2e-2)
