"""The text that routes are judged on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.route.calibration import TextPlan, calibrate, read_prompts, spread
from tests.byte_tokenizer import VOCAB, ByteTokenizer
from tests.models.hf_models import target_of
from tests.stubs import StubTarget, plain_tokens

PROMPTS = [f"prompt {number}" for number in range(12)]


def loaded(**options: object) -> Loaded:
    return Loaded(StubTarget(VOCAB, order=3, **options), ByteTokenizer())  # type: ignore[arg-type]


def test_the_prompts_that_come_with_the_package() -> None:
    prompts = read_prompts(None)
    assert len(prompts) == len(set(prompts)) == 35


def test_rows_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "a", "id": 1}) + "\n\n" + json.dumps({"turns": ["b", "c"]}) + "\n")
    assert read_prompts(file) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 of .* has no prompt"),
        ('{"prompt": " "}', "line 1 of .* has no prompt"),
        ('{"turns": []}', "line 1 of .* has no prompt"),
        ("[1]", "line 1 of .* has no prompt"),
        ("{", "is not JSON"),
        ("", "has no prompts"),
    ],
)
def test_rows_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_prompts(file)


def test_the_answers_are_the_targets_own() -> None:
    have = loaded()
    texts = calibrate(have, PROMPTS, TextPlan(positions=48, stretch=8, max_new_tokens=20))
    for text in (*texts.searched, *texts.held_out):
        asked = bytes(token for token in text.token_ids if token < 256).decode(errors="replace").partition(">")[0]
        assert asked == "<user"
        length = len(text.token_ids) - 20
        assert list(text.token_ids[length:]) == plain_tokens(have.target, text.token_ids[:length], 20)  # type: ignore[arg-type]
        assert length <= text.start < text.stop <= length + 20
        assert text.stop - text.start == 8


def test_how_much_is_taken() -> None:
    texts = calibrate(loaded(), PROMPTS, TextPlan(positions=44, stretch=8, max_new_tokens=20, held_out_every=4))
    lengths = [text.stop - text.start for text in texts.searched]
    assert lengths == [8, 8, 8, 8, 8, 4]  # 6 prompts, the last one cut to 44 positions
    assert len(texts.held_out) == 1 or len(texts.held_out) == 2
    held = {text.token_ids for text in texts.held_out}
    assert not held & {text.token_ids for text in texts.searched}


def test_nothing_held_out() -> None:
    texts = calibrate(loaded(), PROMPTS[:3], TextPlan(held_out_every=0, max_new_tokens=5))
    assert (len(texts.searched), texts.held_out) == (3, ())


def test_stretches_begin_all_over_the_answers() -> None:
    plan = TextPlan(positions=96, stretch=8, max_new_tokens=40, held_out_every=0)
    texts = calibrate(loaded(), PROMPTS, plan).searched
    offsets = {text.start - (len(text.token_ids) - 40) for text in texts}
    assert len(offsets) >= 10
    assert min(offsets) < 8
    assert max(offsets) > 24


def test_the_same_prompts_give_the_same_text() -> None:
    first, second = (calibrate(loaded(), PROMPTS, TextPlan(max_new_tokens=6)) for _ in range(2))
    other = calibrate(loaded(seed=1), PROMPTS, TextPlan(max_new_tokens=6))
    assert first.digest == second.digest != other.digest


def test_an_answer_may_end_early() -> None:
    have = loaded(
        logits_of=lambda seen: StubTarget(VOCAB, seed=5).logits_of(seen), eos_token_ids=tuple(range(0, 257, 2))
    )
    texts = calibrate(have, PROMPTS, TextPlan(max_new_tokens=30, held_out_every=0))
    assert all(text.stop <= len(text.token_ids) for text in texts.searched)
    assert min(text.stop - text.start for text in texts.searched) < 24


def test_prompts_that_are_too_long_are_passed_over() -> None:
    have = loaded(max_positions=60)
    texts = calibrate(have, ["short", "long" * 20], TextPlan(max_new_tokens=20, held_out_every=0))
    assert len(texts.searched) == 1
    with pytest.raises(InputError, match="all 1 prompts have more than 40 tokens"):
        calibrate(have, ["long" * 20], TextPlan(max_new_tokens=20))


def test_an_encoder_reads_the_prompt() -> None:
    target = target_of("t5")
    have = Loaded(target, None)
    texts = calibrate(have, [[5, 9, 13], [21, 3, 8, 4]], TextPlan(max_new_tokens=4, held_out_every=0))  # type: ignore[list-item]
    for text, prompt in zip(texts.searched, ([5, 9, 13], [21, 3, 8, 4]), strict=True):
        assert list(text.inputs) == prompt
        assert text.token_ids[0] == target.decoder_start_token_id
        assert text.start >= 1


def test_spread() -> None:
    assert spread("abcdef", 3) == ["a", "c", "e"]
    assert spread("ab", 3) == ["a", "b"]


@pytest.mark.parametrize(("name", "value"), [("positions", 0), ("stretch", 0), ("max_new_tokens", 0)])
def test_no_text_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        TextPlan(**{name: value})


def test_nothing_left_to_search_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="held_out_every is 1"):
        TextPlan(held_out_every=1)
