"""What the package promises: these names and no others."""

from __future__ import annotations

import ast
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

import slimtier
from slimtier.kernels import core

PUBLIC = {
    "Engine",
    "Result",
    "SamplingParams",
    "SlimtierError",
    "StopParams",
    "Stream",
    "custom_generate",
}


def test_the_public_names_are_these() -> None:
    assert set(slimtier.__all__) == PUBLIC | {"__version__"}
    assert dir(slimtier) == sorted(slimtier.__all__)
    for name in PUBLIC:
        assert getattr(slimtier, name).__name__ == name
    assert len(slimtier.__all__) == len(set(slimtier.__all__))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'slimtier' has no attribute 'Engin'"):
        _ = slimtier.Engin  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_package() -> None:
    try:
        found = metadata("slimtier")
    except PackageNotFoundError:
        pytest.skip("run from a source tree: slimtier is not installed")
    assert slimtier.__version__ == found["Version"]
    assert found["License-Expression"] == "Apache-2.0"


def test_the_package_is_typed() -> None:
    folder = Path(slimtier.__file__).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "kernels" / "_core.pyi").is_file()


def stub(source: str) -> dict[str, set[str]]:
    """Public name -> its public members, of a stub file; what exists only there (aliases, TypedDicts) is left out."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = set()
        elif isinstance(node, ast.ClassDef) and not node.bases:
            functions = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            found[node.name] = {name for name in functions if not name.startswith("_")}
    return found


def test_the_stub_of_the_core_is_complete() -> None:
    described = stub((Path(slimtier.__file__).parent / "kernels" / "_core.pyi").read_text())
    real = {
        name: {member for member in dir(thing) if not member.startswith("_")} if isinstance(thing, type) else set()
        for name, thing in vars(core).items()
        if not name.startswith("_")
    }
    assert described == real
