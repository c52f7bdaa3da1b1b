"""Code that a model wrote is kept in."""

from __future__ import annotations

import time

import pytest

from slimtier.bench.sandbox import run_python


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("x = ", "SyntaxError"),
        ("import sys; sys.exit(0)", "ended by itself"),
        ("import os; os._exit(0)", "ended by itself"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "PermissionError: socket"),
        ("import subprocess; subprocess.run(['true'])", "PermissionError: subprocess"),
        ("import os; os.system('true')", "PermissionError: os.system"),
        ("import os; os.fork()", "PermissionError: os.fork"),
        ("open('x', 'w')", "PermissionError: writing files"),
        ("import os; os.remove('/etc/hostname')", "PermissionError: os.remove"),
        ("x = bytearray(1 << 34)", "MemoryError"),
    ],
)
def test_what_is_refused(code: str, why: str) -> None:
    ran = run_python(code)
    assert not ran.passed
    assert why in ran.why


def test_what_runs_to_its_end_passes() -> None:
    assert run_python("import math, re, collections\nassert math.floor(2.5) == 2\nprint('said')").passed


def test_a_loop_is_ended() -> None:
    started = time.monotonic()
    ran = run_python("while True: pass", seconds=1.0)
    assert not ran.passed
    assert "longer than 1 s" in ran.why or "ended by itself" in ran.why
    assert time.monotonic() - started < 10


def test_the_environment_is_not_told() -> None:
    assert run_python("import os; assert not set(os.environ) - {'LC_CTYPE'}, dict(os.environ)").passed
