"""Short runs on the tiny target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slimtier.train.config import read_config
from slimtier.train.loop import Trainer
from slimtier.train.run import Outcome, Request, train

SHORT = (
    "drafter.rank=4", "init.induction_steps=2", "optimisation.lr=3e-3", "optimisation.batch_tokens=60",
    "optimisation.steps=20", "unroll.phases=[[1,0.5],[3,0.5]]", "unroll.later_share=0.6", "run.validate_every=10",
    "run.checkpoint_every=5", "run.log_every=1", "run.validation_steps=3",
)  # fmt: skip


def run(capture: Path, target: Path, out: Path, *pairs: str, **request: Any) -> Outcome:
    """Train with the settings of SHORT, changed by `pairs`."""
    config = read_config(None, [*SHORT, *pairs])
    return train(Request(capture, str(target), out, config, **request), lambda words: None, lambda done, of: None)


@contextmanager
def cut_off(at: int) -> Iterator[None]:
    """A run within is killed when so many steps are done."""
    step = Trainer.train_step

    def dies(self: Trainer, batch: Any) -> dict[str, Any]:
        if self.step == at:
            raise KeyboardInterrupt
        return step(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", dies)
        with pytest.raises(KeyboardInterrupt):
            yield


def metrics(out: Path, key: str = "loss") -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that have `key`, without the times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_s"} for line in lines if key in line]


def weights(out: Path) -> bytes:
    """The trained draft's weights, as written."""
    return (out / "draft" / "model.safetensors").read_bytes()
