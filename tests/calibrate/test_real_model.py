"""A calibration of a real model, small enough to sit through."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.audit import audit
from slimtier.calibrate.plan import Plan
from slimtier.calibrate.run import calibrate
from slimtier.calibrate.trial import Drafting
from slimtier.drafters.ngram import NgramDrafter
from slimtier.engine import Engine
from slimtier.loading import RunOptions, load
from slimtier.result import Result

QUESTIONS = ("Why is the sky blue?", "Name three fruits.", "What is a prime number?", "Who wrote Hamlet?")
MORE = ("What do bees eat?", "Say hello in French.", "How many legs has a spider?", "What is rain?", "Define a verb.")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_q4_under_fp32(tmp_path: Path) -> None:
    loaded = load("smollm2-135m", RunOptions(precision="fp32"))
    prompts = [[{"role": "user", "content": text}] for text in (*QUESTIONS, *MORE)]
    plan = Plan(epsilon=0.4, prompts=9, max_new_tokens=16, timed=2, margins=(1.0, 0.0), accepts=())
    out = tmp_path / "route.json"
    file = calibrate(loaded, Drafting("ngram", NgramDrafter, 5, {}), "q4", prompts, plan, out)
    first, last = file.calibrated["grid"][:2]
    assert (first["gate"]["reread"], last["gate"].get("reread")) == (12, None)
    assert first["certified"]
    assert first["mean_loss"] <= last["mean_loss"] < 0.4
    assert first["decided"]["target"] > last["decided"]["target"] == 0.0
    engine = Engine.from_pretrained(
        "smollm2-135m", precision="fp32", drafter="ngram", tiers="calibrated", route=str(out)
    )
    result = engine.generate(prompts[0], max_new_tokens=16)
    assert isinstance(result, Result)
    assert not result.lossless
    ids = loaded.tokenizer.encode_chat(prompts[0])
    assert audit(loaded.target, ids, result.token_ids).mean < 0.4
    plain = Engine(loaded.target, tokenizer=loaded.tokenizer).generate(prompts[0], max_new_tokens=16)
    assert isinstance(plain, Result)
    assert audit(loaded.target, ids, plain.token_ids).mean == 0.0
