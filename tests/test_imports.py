"""Who may import whom: a module imports from lower levels, siblings that must not know each other do not, no cycles.

Every import counts, also those in functions and those for type checkers only; the latter alone make no cycle.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOM_LEVELS = {
    0: "types errors files jsonl config provenance sampling noise penalties",
    1: "kernels models checkpoint",
    2: "drafters verifiers",
    3: "decode audit stats sequence text result options prompts registry tiers loading engine "
    "hf_columns hf_generate hf_request",
    4: "route calibrate train advise bench serve export",
    5: "__init__",  # the public names
    6: "cli",
}
LEVEL = {room: level for level, rooms in ROOM_LEVELS.items() for room in rooms.split()}
STRANGERS = (2, 4)  # levels whose rooms never import each other


def module_name(path: Path) -> str:
    """`slimtier.models.base`; a package has its own name."""
    parts = path.with_suffix("").parts
    inside = parts[len(parts) - parts[::-1].index("slimtier") - 1 :]
    return ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path: Path, names: set[str], *, for_types: bool = True) -> set[str]:
    """The package's modules that the file imports; `for_types`: those under `if TYPE_CHECKING` too."""
    tree = ast.parse(path.read_text())
    skipped = {inner for node in ast.walk(tree) if not for_types and is_for_types(node) for inner in ast.walk(node)}
    found = set()
    for node in set(ast.walk(tree)) - skipped:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module or "")
    return (found & names) - {module_name(path)}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@pytest.fixture(scope="module")
def paths(root: Path) -> dict[str, Path]:
    """Module -> its file."""
    return {module_name(path): path for path in sorted((root / "src" / "slimtier").rglob("*.py"))}


@pytest.fixture(scope="module")
def graph(paths: dict[str, Path]) -> dict[str, set[str]]:
    return {name: imports(path, set(paths)) for name, path in paths.items()}


def test_every_module_has_a_level(graph: dict[str, set[str]]) -> None:
    assert {room(module) for module in graph} <= LEVEL.keys()


def test_imports_go_down(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{module} (level {LEVEL[room(module)]}) imports {other} (level {LEVEL[room(other)]})"
        for module, others in graph.items()
        for other in others
        if LEVEL[room(other)] > LEVEL[room(module)]
    ]
    assert not wrong


def test_strangers_do_not_import_each_other(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if LEVEL[room(module)] == LEVEL[room(other)] in STRANGERS and room(module) != room(other)
    ]
    assert not wrong


def test_there_is_no_cycle(paths: dict[str, Path]) -> None:
    graph = {name: imports(path, set(paths), for_types=False) for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def imported_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running `code`, which may exit."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("verb", ["", "generate", "chat", "models", "doctor"])
def test_help_imports_nothing_heavy(verb: str) -> None:
    loaded = imported_by(
        f"sys.argv = ['slimtier', *{verb.split()!r}, '--help']; import slimtier.cli.main as m; m.main()"
    )
    assert "slimtier.cli.generate" in loaded
    assert not loaded & {"torch", "transformers", "huggingface_hub", "gguf", "numpy", "tokenizers", "safetensors"}


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = imported_by("import slimtier; slimtier.SamplingParams(); slimtier.SlimtierError()")
    assert not loaded & {"torch", "transformers", "numpy"}
