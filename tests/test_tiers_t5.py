"""Tiers of an encoder-decoder, which transformers runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.models.slim import SlimTarget
from slimtier.result import Result
from slimtier.types import Route
from tests.models.hf_models import CONFIGS, build, one_thread
from tests.small_tokenizer import small_tokenizer
from tests.test_engine import many, one

TEXTS = ["the cat sat on the cat sat on the", "a", "no bees here"]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("t5")
    config = CONFIGS["t5"]()
    config.num_decoder_layers = config.num_layers = (
        4  # transformers' own generate has caches for as many as the encoder
    )
    config.eos_token_id, config.pad_token_id = 2, 0
    build(config).save_pretrained(path)
    small_tokenizer().save_pretrained(path)
    with one_thread():
        yield path


@pytest.fixture(scope="module")
def t5_plain(t5: Path) -> list[list[int]]:
    """What transformers' own generate writes."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(t5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(t5)
    found = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        found.append(out[0, 1:].tolist())
    return found


@pytest.mark.parametrize(
    ("tiers", "route", "drafter"),
    [
        ("exact", "skip:0.25", "none"),
        ("exact", "skip:0.25,skip:0.5", "ngram"),
        ("exact", "skip:0.5", "ngram"),
        ("observe", "skip:0.5", "ngram"),
    ],
)
def test_t5_writes_what_transformers_does(
    t5: Path, t5_plain: list[list[int]], tiers: str, route: str, drafter: str
) -> None:
    engine = Engine.from_pretrained(str(t5), runtime="hf", tiers=tiers, route=route, drafter=drafter)
    assert list(one(engine.generate(TEXTS[0], max_new_tokens=20)).token_ids) == t5_plain[0]  # finds what can be skipped
    encoded: list[int] = []
    encoder: Any = engine.target.model.get_encoder()  # type: ignore[attr-defined]
    handle = encoder.register_forward_hook(lambda *_: encoded.append(1))
    together = many(engine.generate(TEXTS, max_new_tokens=20))
    assert len(encoded) == len(TEXTS), "the encoder runs once a row"
    handle.remove()
    assert [list(each.token_ids) for each in together] == t5_plain
    stats = together[0].stats
    assert stats.tiers.slim_calls > 0


def test_t5_in_lossy_tiers(t5: Path, t5_plain: list[list[int]]) -> None:
    def answers(**settings: Any) -> list[Result]:
        engine = Engine.from_pretrained(
            str(t5), runtime="hf", tiers="paper", route="skip:0.25", drafter="ngram", **settings
        )
        return many(engine.generate(TEXTS, max_new_tokens=20))

    assert [list(each.token_ids) for each in answers(accept=9, escalate=9)] == t5_plain
    found = answers()
    assert not any(each.lossless for each in found)
    assert sum(each.stats.tiers.slim_calls for each in found) > 0
    alone = answers(accept=9, escalate=0)
    assert {who for each in alone for who in each.deciders} == {"slim"}
    engine = Engine.from_pretrained(str(t5), runtime="hf", drafter="none")
    slim = SlimTarget(engine.target, Route.skipping(4, [2]))
    slim.is_encoder_decoder, slim.decoder_start_token_id = True, 0  # type: ignore[attr-defined]
    plain = many(Engine(slim, tokenizer=engine.tokenizer).generate(TEXTS, max_new_tokens=20))
    assert [each.token_ids for each in alone] == [each.token_ids for each in plain]


def test_routes_that_the_runtime_does_not_have(t5: Path) -> None:
    for route in ("q4", "skip:0.25,q8"):
        with pytest.raises(ConfigError, match="only the native CPU kernels have: on hf choose a route that skips"):
            Engine.from_pretrained(str(t5), runtime="hf", tiers="exact", route=route, drafter="none")
