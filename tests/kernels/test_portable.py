"""One wheel for every CPU: the other instruction sets, and a CPU that has none of them.

The kernels' self-test (cpp/selftest.cpp) is built by CMake with the flags of the wheel, natively and for ARM, and run
under an emulator where need be. What the machine lacks for that is named as the reason of a skip.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slimtier.kernels import core

ON_X86 = platform.machine() in ("x86_64", "AMD64")
OLD_CPU = ("qemu-x86_64-static", "-cpu", "Nehalem")  # SSE 4.2, no AVX
ARM_COMPILER = "aarch64-linux-gnu-g++"
VECTOR_EXTENSIONS = re.compile(r"%[yz]mm|\tv[a-z]")  # wide registers, and every mnemonic of AVX and later

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

USE_CORE = """
import numpy as np
from slimtier.kernels import core
x, w = np.ones((3, 40), np.float32), np.full((20, 40), 0.5, np.float32)
for matrix in (core.Matrix.from_floats(w, "f32"), core.Matrix.from_codes(np.full((20, 40), 2, np.uint8),
        np.full((20, 2), 0.25, np.float32), np.zeros((20, 2), np.float32), 32, 4)):
    out = np.zeros((3, 20), np.float32)
    matrix.linear(core.Pool(2), x, out)
    assert np.allclose(out, 20.0), out
print(core.isa())
"""


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def output(*command: str | Path, **options: str) -> str:
    """What the command prints; it must succeed."""
    run = subprocess.run([*command], capture_output=True, text=True, env={**os.environ, **options})
    assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
    return run.stdout


def build(root: Path, directory: Path, **settings: str) -> Path:
    """The self-test's build directory."""
    need("cmake", settings.get("CMAKE_CXX_COMPILER", "c++"))
    choices = {"SLIMTIER_SELFTEST": "ON", "CMAKE_EXE_LINKER_FLAGS": "-static", **settings}
    output("cmake", "-S", root, "-B", directory, *(f"-D{name}={value}" for name, value in choices.items()))
    output("cmake", "--build", directory, "--parallel", "2")
    return directory


@pytest.fixture(scope="module")
def native(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    static = {} if sys.platform == "linux" else {"CMAKE_EXE_LINKER_FLAGS": ""}
    return build(root, tmp_path_factory.mktemp("native"), **static)


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512", "neon"])
def test_an_instruction_set_agrees_with_the_plain_kernels(isa: str, native: Path) -> None:
    if not core.has_isa(isa):
        pytest.skip(f"this machine does not run {isa}")
    assert output(native / "selftest", isa).endswith("agree\n")


@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+dotprod"])
def test_arm_agrees_with_the_plain_kernels(march: str, root: Path, tmp_path: Path) -> None:
    need("qemu-aarch64-static", ARM_COMPILER)
    target = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64", "CMAKE_CXX_COMPILER": ARM_COMPILER}
    directory = build(root, tmp_path, **target, CMAKE_CXX_FLAGS=f"-march={march}")
    assert output("qemu-aarch64-static", directory / "selftest", "neon").endswith("agree\n")


@pytest.mark.skipif(not ON_X86, reason="about x86-64")
def test_only_the_objects_of_an_instruction_set_hold_its_code(native: Path) -> None:
    need("objdump")
    objects = sorted(native.glob("CMakeFiles/*.dir/cpp/*.o"))
    holding = {path.name for path in objects if VECTOR_EXTENSIONS.search(output("objdump", "-d", path))}
    assert len(objects) >= 8
    assert holding == {"isa_avx2.cpp.o", "isa_avx512.cpp.o"}


@pytest.mark.skipif(not ON_X86, reason="about x86-64")
def test_a_cpu_without_avx_takes_the_plain_kernels(native: Path) -> None:
    need(OLD_CPU[0])
    assert output(*OLD_CPU, native / "selftest", "plain").endswith("agree\n")
    # The installed module itself; numpy's BLAS is told what the emulated CPU is, for it reads the real one's.
    assert output(*OLD_CPU, sys.executable, "-c", USE_CORE, OPENBLAS_CORETYPE="Nehalem").endswith("plain\n")


def test_the_plain_kernels_pass_the_tests_of_the_kernels(root: Path) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "tests/kernels", "-p", "no:cacheprovider")
    run = subprocess.run(command, cwd=root, env={**os.environ, "SLIMTIER_ISA": "plain"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert output(sys.executable, "-c", USE_CORE, SLIMTIER_ISA="plain").endswith("plain\n")


def test_an_instruction_set_that_is_not_there_is_an_error() -> None:
    run = subprocess.run(
        [sys.executable, "-c", USE_CORE], env={**os.environ, "SLIMTIER_ISA": "mmx"}, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "SLIMTIER_ISA=mmx does not run on this machine; unset it" in run.stderr
