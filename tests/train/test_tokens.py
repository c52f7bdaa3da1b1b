"""Which tokens a trimmed head keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slimtier.errors import ConfigError
from slimtier.models.resolve import resolve
from slimtier.models.tokenizer import load_tokenizer
from slimtier.train.shards import open_capture
from slimtier.train.tokens import always_kept, meant, token_counts, trimmed_ids
from tests.train.captures import VOCAB


def test_counts_of_answers_and_of_prompts_make_up_the_text(tiny_capture: Path) -> None:
    capture = open_capture(tiny_capture)
    answers, prompts = (token_counts(capture, capture.rows, of) for of in ("answers", "prompts"))  # type: ignore[arg-type]
    text = torch.cat([capture.read_tokens(row) for row in capture.rows])
    assert torch.equal(answers + prompts, torch.bincount(text, minlength=VOCAB))
    assert int(answers.sum()) == sum(len(capture.read_labels(row)[0]) for row in capture.rows)


def test_what_the_target_meant(tiny_capture: Path) -> None:
    capture = open_capture(tiny_capture)
    sums = meant(capture, capture.rows)
    answers = int(token_counts(capture, capture.rows, "answers").sum())
    each = float(capture.read_labels(capture.rows[0])[1][0].exp().sum())  # of every answer token alike
    assert float(sums.sum()) == pytest.approx(answers * each, rel=1e-4)


def test_end_special_and_byte_tokens_are_always_kept(tiny_target: Path) -> None:
    tokenizer = load_tokenizer(resolve(str(tiny_target)))
    assert always_kept(tokenizer, VOCAB) == [2, 5, 9]
    counts = torch.arange(VOCAB, 0, -1)
    assert trimmed_ids(counts, 6, [5, 9, 60]).tolist() == [0, 1, 2, 5, 9, 60]


def test_a_head_of_more_rows_than_tokens_seen_is_filled_up_alike() -> None:
    counts = torch.zeros(20, dtype=torch.int64)
    counts[[7, 3]] = 4
    assert trimmed_ids(counts, 5, [12]).tolist() == [0, 1, 3, 7, 12]


def test_sizes_that_cannot_be() -> None:
    counts = torch.ones(20, dtype=torch.int64)
    for size in (2, 21):
        with pytest.raises(ConfigError, match=r"give at least 3 .* and at most 20"):
            trimmed_ids(counts, size, [1, 2, 3])
