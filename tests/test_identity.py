"""The real model on the native runtime: speculation gives the tokens and the logits of plain decoding, bit for bit."""

from __future__ import annotations

import json

import pytest

from benchmarks import identity


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_tenth_of_the_prompts_is_identical_with_every_drafter_length_and_precision(tmp_path):
    out = tmp_path / "identity.jsonl"
    assert identity.main(["--fraction", "0.1", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    runs = [row for row in rows if row["kind"] == "run"]
    assert len(runs) == 6 * len(identity.PRECISIONS) * 4 * len(identity.LENGTHS) * 2
    assert all(row["identical"] for row in runs)
    for drafter in ("ngram", "auto", "layer_skip", "draft_model"):  # drafts were made, and some were accepted
        assert max(row["mean_acceptance_length"] for row in runs if row["drafter"] == drafter) > 1.2
