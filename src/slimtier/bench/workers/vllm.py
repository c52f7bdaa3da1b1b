"""Worker: vLLM's server for CPUs: plain, with its n-gram drafter or an EAGLE-3 draft.

The server is a process of its own that ends with this one. It sleeps between requests: its engine runs in one process,
since vLLM's separate one polls for a second after each answer.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slimtier.bench.workers.serve import Clock, calls, forget_peak, peak_bytes, serve, use_cores

_LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}  # its default, 5 and 5, finds little
_CACHE_GIB = 2  # allocated when it starts
_START_LIMIT_S = 900.0
_STOP_LIMIT_S = 5.0  # after which it is killed
_COUNTS_LIMIT_S = 2.0  # in which its counters have caught up with an answer
_LOG_LINES = 40
_LINE_LENGTH = 300
_REASON = re.compile(r"\w+(?:Error|Exception): (?!Engine core init).*")  # which sends to the error above it
_NAME = "target"
# Waits for its input to end, which it does with the worker, in whatever way that ends.
_GUARD = 'read -r _; kill -s TERM -- "-$1"; sleep 2; kill -s KILL -- "-$1"'
_COUNTER = re.compile(r'vllm:(spec_decode_num|generation)_(\w+)_total\{(?:.*position="(\d+)")?.*\} (\S+)')
_server: _Server | None = None


def load(
    path: str,
    threads: int,
    method: str = "plain",
    num_speculative_tokens: int = 5,
    draft: str | None = None,
    dtype: str = "float32",
    context: int = 2048,
    max_num_seqs: int = 64,
) -> dict[str, Any]:
    """`method`: plain, ngram or eagle3 (with `draft`, a directory that vLLM reads)."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError("No module named 'vllm'")
    global _server
    speculation = _speculation(method, num_speculative_tokens, draft)
    use_cores(threads)
    if _server is not None:
        _server.stop()
    environment = _environment(threads)
    chosen = {"dtype": dtype, "max-model-len": context, "max-num-seqs": max_num_seqs}
    options = [f"--{name}={value}" for name, value in chosen.items()]
    if speculation:
        options.append(f"--speculative-config={json.dumps(speculation)}")
    _server = _Server(path, options, environment, bool(speculation))
    settings = {name.replace("-", "_"): value for name, value in chosen.items()}
    return {
        "versions": {"vllm": _server.get_json("/version")["version"], "torch": importlib.metadata.version("torch")},
        "settings": {
            **settings,
            "speculative_config": speculation,
            "kv_cache_gib": _CACHE_GIB,
            "enforce_eager": True,
            "intel_openmp": "libiomp5" in environment.get("LD_PRELOAD", ""),
        },
        "peak_memory_bytes": _server.peak_bytes(),
    }


def generate(
    token_ids: list[int], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any] | None = None
) -> dict[str, Any]:
    server, request = _ready(), _request(token_ids, max_tokens, eos_token_ids, sampling)
    server.forget_peak()
    before = server.counts()
    clock, chunks = Clock(), 0
    for choice in server.stream(request):
        if choice["token_ids"]:
            clock.block(choice["token_ids"])
            chunks += 1
    drafted = server.counts_after(before, len(clock.token_ids))
    return clock.report(
        stats={**calls(len(clock.token_ids), chunks), **_statistics(drafted)}, peak_memory_bytes=server.peak_bytes()
    )


def generate_batch(
    prompts: list[list[int]], max_tokens: int, eos_token_ids: list[int], sampling: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All prompts in one request: output tokens a second of the whole call, prompts' reading included."""
    server, request = _ready(), _request(prompts, max_tokens, eos_token_ids, sampling)
    server.forget_peak()
    before = server.counts()
    started = time.perf_counter()
    choices = server.post_json("/v1/completions", request)["choices"]
    seconds = time.perf_counter() - started
    tokens = [list(choice["token_ids"]) for choice in sorted(choices, key=lambda choice: int(choice["index"]))]
    drafted = _statistics(server.counts_after(before, sum(map(len, tokens))))
    return {
        "tokens_per_s": sum(map(len, tokens)) / seconds,
        "token_ids": tokens,
        "num_drafts": drafted.get("num_drafts", 0),
        "accepted_per_position": drafted.get("num_accepted_tokens_per_pos", []),
        "peak_memory_bytes": server.peak_bytes(),
    }


def _ready() -> _Server:
    if _server is None:
        raise RuntimeError("nothing is loaded")
    return _server


def _speculation(method: str, tokens: int, draft: str | None) -> dict[str, Any] | None:
    if method == "plain":
        return None
    if method == "ngram":
        return {"method": method, "num_speculative_tokens": tokens, **_LOOKUP}
    if method != "eagle3":
        raise ValueError(f"no method {method!r}: plain, ngram or eagle3")
    if not draft:
        raise ValueError("eagle3 needs draft, the directory of a checkpoint that vLLM reads")
    return {"method": method, "num_speculative_tokens": tokens, "model": draft}


def _environment(threads: int) -> dict[str, str]:
    """OpenMP as vLLM sets it up where it binds threads itself, which it cannot do in one process."""
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "KMP_BLOCKTIME": "5",  # milliseconds that threads poll before they sleep
        "KMP_TPAUSE": "0",
    }
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if openmp.is_file():
        environment["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(openmp)]))
    return environment


def _request(prompt: Any, most: int, eos: list[int], sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Stops at `eos` and at no other token of the model's."""
    return {
        "model": _NAME,
        "prompt": prompt,
        "max_tokens": most,
        "ignore_eos": True,
        "stop_token_ids": eos,
        "return_token_ids": True,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        **(sampling or {}),
    }


def _statistics(counts: Mapping[str, int]) -> dict[str, Any]:
    """Of what was drafted, empty if nothing can be. vLLM counts drafts past an EOS or the budget, too."""
    if "num_drafts" not in counts:
        return {}
    drafts, drafted, accepted = (counts[f"num_{name}"] for name in ("drafts", "draft_tokens", "accepted_tokens"))
    places = sum(name.startswith("num_accepted_tokens_per_pos") for name in counts)
    return {
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "num_accepted_tokens_per_pos": [counts[f"num_accepted_tokens_per_pos{place}"] for place in range(places)],
        "mean_acceptance_length": 1.0 + accepted / drafts if drafts else 1.0,
        "acceptance_rate": accepted / drafted if drafted else None,
    }


class _Server:
    """The process and what it answers."""

    def __init__(self, path: str, options: list[str], environment: Mapping[str, str], counting: bool) -> None:
        self._counting = counting
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (for as long as the process)
        self._port = _free_port()
        # not vllm's command line: that asks for a package's version by a name which vllm-cpu has not
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={path}", *options]
        command += ["--host=127.0.0.1", f"--port={self._port}", f"--served-model-name={_NAME}", "--skip-tokenizer-init"]
        command += ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
        if not counting:
            command.append("--disable-log-stats")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.stop)
        self._wait()

    def _wait(self) -> None:
        limit = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise RuntimeError(f"vLLM did not start: {self._failure()}")
            try:
                self._answer("GET", "/health").read()
                return
            except OSError:  # it does not listen yet
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"vLLM did not start within {_START_LIMIT_S:.0f} s: {self._failure()}")

    def stop(self) -> None:
        """End it and all that it started."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.kill()
        self._guard.communicate()

    def get_json(self, place: str) -> Any:
        return json.loads(self._answer("GET", place).read())

    def post_json(self, place: str, body: Mapping[str, Any]) -> Any:
        return json.loads(self._answer("POST", place, body).read())

    def stream(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The choice of each event as it comes."""
        answer = self._answer("POST", "/v1/completions", {**request, "stream": True})
        while line := answer.readline():
            data = line.removeprefix(b"data: ").strip()
            if data and data != b"[DONE]":
                event = json.loads(data)
                if "choices" not in event:
                    raise RuntimeError(f"vLLM: {data.decode()}")
                yield from event["choices"]

    def counts(self) -> Counter[str]:
        """What it has drafted and generated since it started; nothing where it does not draft."""
        found: Counter[str] = Counter()
        if self._counting:
            for kind, name, place, value in _COUNTER.findall(self._answer("GET", "/metrics").read().decode()):
                found[("num_" if kind != "generation" else "generated_") + name + place] += int(float(value))
        return found

    def counts_after(self, before: Mapping[str, int], tokens: int) -> dict[str, int]:
        """What `tokens` tokens have added: it counts after it has answered."""
        limit = time.monotonic() + _COUNTS_LIMIT_S
        while True:
            now = self.counts()
            added = {name: value - before[name] for name, value in now.items()}
            if not self._counting or added.get("generated_tokens", 0) >= tokens or time.monotonic() > limit:
                return added
            time.sleep(0.005)

    def forget_peak(self) -> None:
        for process in self._processes():
            forget_peak(process)

    def peak_bytes(self) -> int | None:
        """The sum of what each of its processes had resident at most, its cache included."""
        return sum(peak_bytes(process) or 0 for process in self._processes()) or None

    def _processes(self) -> Iterator[int]:
        """All of its session."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(entry.name)) == self._process.pid:
                    yield int(entry.name)
            except OSError:
                continue

    def _answer(self, verb: str, place: str, body: Mapping[str, Any] | None = None) -> http.client.HTTPResponse:
        """Raises RuntimeError with what it says when it refuses, OSError when it cannot be reached."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        content = None if body is None else json.dumps(body)
        connection.request(verb, place, content, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"vLLM: {answer.status} {answer.read().decode(errors='replace')[-1000:]}")
        return answer

    def _failure(self) -> str:
        """The last error of the log, and the log's end."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        reason = f"exit status {self._process.poll()}"
        for place, line in enumerate(lines):
            if found := _REASON.search(line):
                detail = lines[place + 1 : place + 2] if "validation error" in found[0] else []
                reason = " ".join([found[0], *map(str.strip, detail)])
        return "\n".join(line[:_LINE_LENGTH] for line in [reason, *lines[-_LOG_LINES:]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve({"load": load, "generate": generate, "generate_batch": generate_batch})
