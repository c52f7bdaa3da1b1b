"""The draft that comes with slimtier: whole, small, known for what it was made of, and no danger to a token."""

from __future__ import annotations

from typing import Any

import pytest

from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.eagle.load import read_draft
from slimtier.drafters.eagle.open import SHIPPED
from slimtier.engine import Engine

PLACE = SHIPPED / "smollm2-135m"
pytestmark = pytest.mark.skipif(not PLACE.is_dir(), reason="no draft is shipped yet")
MESSAGES = [{"role": "user", "content": "Write a short story about a lighthouse."}]


@pytest.fixture(scope="module")
def plain() -> Any:
    return Engine.from_pretrained("smollm2-135m", drafter="none", precision="q8")


def test_it_is_a_slim_head_of_an_eighth_in_at_most_14_megabytes() -> None:
    files = read_draft(PLACE)
    assert files.config.head.kind == "slim"
    assert files.config.head.rank == files.config.hidden_size // 8
    assert files.config.head.vocab_size == 49152
    assert not files.notes
    assert sum(file.stat().st_size for file in PLACE.iterdir()) <= 14_000_000


def test_its_provenance_says_what_it_was_made_of() -> None:
    record = read_draft(PLACE).provenance
    assert record["model"] == "smollm2-135m"
    for key in ("date", "steps", "answer_tokens", "config", "capture", "master"):
        assert record[key], key


@pytest.mark.slow
def test_it_drafts_by_default_and_changes_no_token(plain: Any) -> None:
    drafted = Engine.from_pretrained("smollm2-135m", precision="q8")
    assert isinstance(drafted.drafter, AutoDrafter)
    assert drafted.drafter.capture == (1, 14, 26)
    expected = plain.generate(MESSAGES, max_new_tokens=48)
    assert drafted.generate(MESSAGES, max_new_tokens=48).token_ids == expected.token_ids
    alone = Engine(plain.target, drafted.drafter.network, tokenizer=plain.tokenizer, num_speculative_tokens=4).generate(
        MESSAGES, max_new_tokens=48
    )
    assert alone.token_ids == expected.token_ids
    assert alone.stats.num_accepted_tokens > 0
