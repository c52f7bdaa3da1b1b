"""Worker processes: the line protocol, the clock, what is missing and what fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from slimtier.bench.worker import MissingPeer, Worker
from slimtier.bench.workers.serve import Clock, timed


def test_the_clock_counts_the_tokens_after_the_first_block(monkeypatch):
    times = iter([10.0, 12.0, 13.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = Clock()
    for block in ([1, 2], [3], [4, 5, 6]):
        clock.block(block)
    report = clock.report(more=1)
    assert report == {
        "token_ids": [1, 2, 3, 4, 5, 6], "tokens_per_s": 2.0, "end_to_end_tokens_per_s": 1.5,
        "time_to_first_token_s": 2.0, "more": 1,
    }  # fmt: skip


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('no llama_cpp here')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with (
        Worker("llama", sys.executable) as worker,
        pytest.raises(MissingPeer, match=r"no llama_cpp here.*pip install llama-cpp-python"),
    ):
        worker.ask("load", path="x", threads=1, context=1)


def test_a_failing_worker_says_why_and_lives_on():
    with Worker("llama", sys.executable) as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
                worker.ask("nothing")
        assert (worker.idle_use(0.05) or 0.0) < 0.5


def test_an_interpreter_that_is_not_there_is_a_missing_peer():
    with pytest.raises(MissingPeer, match="cannot run /no/python"):
        Worker("llama", "/no/python")


def test_another_python_runs_a_worker_without_slimtier(tmp_path):
    """What a peer's environment has: a link to this interpreter, under another name."""
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    with Worker("hf", str(other)) as worker, pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
        worker.ask("nothing")


def test_what_tells_no_block_is_timed_by_its_first_token(monkeypatch):
    times = iter([0.0, 1.0, 1.0, 4.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    told = timed(lambda most: list(range(most)), 5)
    assert told == {
        "token_ids": [0, 1, 2, 3, 4], "tokens_per_s": 2.0, "end_to_end_tokens_per_s": 5 / 3,
        "time_to_first_token_s": 1.0,
    }  # fmt: skip


def test_the_idle_use_counts_what_a_worker_started() -> None:
    """A server that spins beside a worker that waits."""
    busy = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']); input()"
    with Worker("llama", sys.executable) as worker:
        quiet = worker._process
        with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, start_new_session=True) as spinning:
            worker._process = spinning  # type: ignore[assignment]
            time.sleep(0.3)
            use = worker.idle_use(0.5)
            worker._process = quiet
            os.killpg(spinning.pid, signal.SIGKILL)
    assert use is None or use > 0.1
