"""How large the code is: `python tools/sizes.py` lists every file past the habit, and fails on what breaks a limit.

A line counts if it holds code: blank lines, comments and docstrings are free.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "tools")

HABIT, FILE, FUNCTION, FIELDS, CPP = 250, 400, 50, 12, 450
OWN_LIMITS = {"src/slimtier/decode.py": 150}
VERB = 80  # files in cli/, but what verbs share
SHARED = ("__init__.py", "common.py", "main.py")

_FREE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> set[int]:
    """The numbers of the lines of a Python source that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _FREE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def python_problems(name: str, text: str) -> Iterator[str]:
    """What in the Python source `name` is larger than its limit."""
    lines = code_lines(text)
    limit = OWN_LIMITS.get(name, FILE)
    if name.startswith("src/slimtier/cli/") and not name.endswith(SHARED):
        limit = VERB
    if len(lines) > limit:
        yield f"{name}: {len(lines)} code lines, the limit is {limit}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            if count > FUNCTION:
                yield f"{name}:{node.lineno}: {node.name} has {count} code lines, the limit is {FUNCTION}"
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            count = sum(isinstance(field, ast.AnnAssign) for field in node.body)
            if count > FIELDS:
                yield f"{name}:{node.lineno}: {node.name} has {count} fields, the limit is {FIELDS}"


def problems(root: Path) -> Iterator[str]:
    """Everything in the repository at `root` that is larger than its limit."""
    for path in python_files(root):
        yield from python_problems(path.relative_to(root).as_posix(), path.read_text())
    for path in sorted((root / "cpp").iterdir()):
        count = len(path.read_text().splitlines())
        if count > CPP:
            yield f"{path.relative_to(root).as_posix()}: {count} lines, the limit is {CPP}"


def python_files(root: Path) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def main() -> int:
    """Print the files past the habit, then the broken limits; 1 if there are any."""
    counts = {path: len(code_lines(path.read_text())) for path in python_files(ROOT)}
    for path, count in sorted(counts.items(), key=lambda item: -item[1]):
        if count > HABIT:
            print(f"{count:5} {path.relative_to(ROOT)} (past the habit of {HABIT})")
    source = sum(count for path, count in counts.items() if (ROOT / "src") in path.parents)
    print(f"{source:5} code lines in src/ of {sum(counts.values())} in all")
    found = list(problems(ROOT))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
