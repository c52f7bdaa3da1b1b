"""The roofline: limits by reading and by multiplying, and rows that say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.bench import roofline
from slimtier.bench.roofline import Limits, Reached, measure_roofline, square_matrix
from slimtier.drafters.ngram import NgramDrafter
from slimtier.models.native import load_native, open_weights
from slimtier.models.resolve import resolve
from tests.models.native_models import save


def test_the_longer_of_two_times_is_the_limit() -> None:
    read = Reached("a", "q8", 1, seconds=4.0, read_s=2.0, multiply_s=1.0)
    assert (read.fraction, read.bound) == (0.5, "memory")
    multiplied = Reached("a", "q8", 6, seconds=4.0, read_s=2.0, multiply_s=3.0)
    assert (multiplied.fraction, multiplied.bound) == (0.75, "arithmetic")


@pytest.mark.parametrize("precision", ["fp32", "q8", "q4"])
def test_every_kernel_a_step_and_a_round_are_measured(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "FLUSH_BYTES", 1 << 20)
    save("llama", tmp_path)
    files = resolve(str(tmp_path))
    target = load_native(files, precision=precision, threads=1)
    told: list[int] = []
    limits, found = measure_roofline(
        target, open_weights(files), precision, NgramDrafter(), lambda done, total: told.append(done), rounds=2
    )
    assert isinstance(limits, Limits)
    assert told == [1, 2]
    assert limits.gb_per_s > 0
    assert set(limits.gmac_per_s) == {kind for one in found for kind in one.weights.split(" and ")}
    work = [(one.work, one.tokens) for one in found]
    for name in ("q, k and v", "attention output", "gate and up", "down", "head"):
        assert {(name, 1), (name, 6)} <= set(work)
    assert ("a plain step", 1) in work
    assert ("verifying 5 drafted tokens", 6) in work
    (fed,) = [tokens for name, tokens in work if name.startswith("a round")]
    assert 1 <= fed <= 6
    assert all(one.seconds > 0 and one.read_s > 0 and one.multiply_s > 0 for one in found)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8", "q4"])
def test_a_square_matrix_of_every_kind(kind: str) -> None:
    import numpy as np

    assert square_matrix(kind, np.random.default_rng(0)).kind == kind
