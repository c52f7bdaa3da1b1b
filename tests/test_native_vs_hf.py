"""The real model: the native runtime's logits beside those of transformers."""

from __future__ import annotations

import json

import pytest

from benchmarks import native_vs_hf


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_teacher_forced_logits_are_those_of_transformers(tmp_path):
    out = tmp_path / "native_vs_hf.jsonl"
    assert native_vs_hf.main(["--models", "smollm2-135m", "--texts", "3", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    texts = [row for row in rows if row["kind"] == "text"]
    assert [row["num_tokens"] for row in texts] == [200, 200, 200]
    assert max(row["max_abs_difference"] for row in texts) <= 2e-3
