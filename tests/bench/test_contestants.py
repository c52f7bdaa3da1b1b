"""What systems are given to read, and the turns they take."""

from __future__ import annotations

import subprocess
import sys

from slimtier.bench.checkpoint import slug
from slimtier.bench.contestants import in_turn


def test_a_file_name_for_a_models_name() -> None:
    assert slug("org/name") == "org--name"
    assert slug("/some/where/x.gguf") == "x.gguf"


def test_each_turn_begins_with_another_one() -> None:
    assert [in_turn("abc", turn) for turn in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_a_report_loads_neither_kernels_nor_torch() -> None:
    code = "import slimtier.bench.report, sys; print([m for m in ('torch', 'slimtier.kernels') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
