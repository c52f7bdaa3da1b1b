"""The size limits, and that the measure measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.sizes import FIELDS, FUNCTION, code_lines, problems, python_problems


def test_nothing_is_larger_than_its_limit(root: Path) -> None:
    assert list(problems(root)) == []


def test_only_code_counts() -> None:
    text = '"""Two\nlines."""\n\nimport os  # why\n\n# a comment\ndef f():\n    """Doc."""\n    return (\n        1)\n'
    assert code_lines(text) == {4, 7, 9, 10}


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def frozen(fields: int) -> str:
    return "@dataclass(frozen=True)\nclass A:\n" + "".join(f"    a{i}: int\n" for i in range(fields))


@pytest.mark.parametrize(
    ("name", "text", "broken"),
    [
        ("src/slimtier/engine.py", "x = 1\n" * 400, False),
        ("src/slimtier/engine.py", "x = 1\n" * 401, True),
        ("src/slimtier/decode.py", "x = 1\n" * 151, True),
        ("src/slimtier/cli/generate.py", "x = 1\n" * 81, True),
        ("src/slimtier/cli/common.py", "x = 1\n" * 81, False),
        ("src/slimtier/engine.py", function(FUNCTION), False),
        ("src/slimtier/engine.py", function(FUNCTION + 1), True),
        ("src/slimtier/engine.py", frozen(FIELDS), False),
        ("src/slimtier/engine.py", frozen(FIELDS + 1), True),
    ],
)
def test_a_limit_is_the_last_that_fits(name: str, text: str, broken: bool) -> None:
    assert bool(list(python_problems(name, text))) is broken
