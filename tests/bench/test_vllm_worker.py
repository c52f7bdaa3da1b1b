"""The vLLM worker against a server that streams what it is told: speeds count tokens, not chunks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slimtier.bench.workers import vllm

TICK_S = 0.08


class Handler(BaseHTTPRequestHandler):
    """`chunks`: the tokens of each event and its second after the request; `metrics`: what the counters say, `after` an
    answer."""

    chunks: Sequence[tuple[list[int], float]] = ()
    metrics = ""
    after = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["stop_token_ids"] == [2]
        assert body["ignore_eos"] is True
        self.send_response(200)
        self.end_headers()
        started = time.perf_counter()
        for tokens, at in self.chunks:
            time.sleep(max(0.0, started + at - time.perf_counter()))
            event = {"choices": [{"index": 0, "token_ids": tokens, "text": ""}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        type(self).metrics = self.after

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.metrics.encode())

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The worker's view of a vLLM that runs."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    made = vllm._Server.__new__(vllm._Server)
    made._port, made._counting = listening.server_address[1], False
    monkeypatch.setattr(made, "_processes", lambda: iter(()), raising=False)
    monkeypatch.setattr(vllm, "_server", made)
    yield made
    listening.shutdown()
    listening.server_close()


def answered(chunks: Sequence[tuple[list[int], float]]) -> dict[str, Any]:
    Handler.chunks = chunks
    return vllm.generate([5, 6], 64, [2], {})


def test_the_speed_is_the_same_however_tokens_are_chunked(server: Any) -> None:
    tokens = list(range(10, 50))
    by_four = [(tokens[at : at + 4], TICK_S * (at // 4 + 1)) for at in range(0, 40, 4)]
    by_one = [([token], TICK_S / 4 * (at + 1)) for at, token in enumerate(tokens)]
    with_empty = [chunk for pair in by_four for chunk in (([], 0.0), pair)]
    told = [answered(chunks) for chunks in (by_four, by_one, with_empty)]
    assert [one["token_ids"] for one in told] == [tokens] * 3
    speeds = [one["tokens_per_s"] for one in told]
    assert max(speeds) / min(speeds) < 1.05
    assert speeds[0] == pytest.approx(4 / TICK_S, rel=0.1)
    assert told[0]["time_to_first_token_s"] < told[0]["stats"]["num_target_calls"] * TICK_S
    assert [one["stats"]["num_target_calls"] for one in told] == [10, 40, 10]


def counters(drafts: int, drafted: int, places: Sequence[int], generated: int) -> str:
    of = 'engine="0",model_name="target"'
    totals = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": sum(places)}
    lines = [f"vllm:spec_decode_num_{name}_total{{{of}}} {value}.0" for name, value in totals.items()]
    for at, count in enumerate(places):
        lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{of},position="{at}"}} {count}.0')
    return "\n".join([*lines, f"vllm:generation_tokens_total{{{of}}} {generated}.0"])


def test_acceptance_is_what_the_counters_grew_by(server: Any) -> None:
    server._counting = True
    Handler.metrics, Handler.after = counters(10, 30, [5, 3, 1], 100), counters(14, 42, [8, 5, 1], 107)
    stats = answered([([1, 2, 3], 0.0), ([4, 5], 0.0), ([6], 0.0), ([7], 0.0)])["stats"]
    assert (stats["num_drafts"], stats["num_draft_tokens"], stats["num_accepted_tokens"]) == (4, 12, 5)
    assert stats["num_accepted_tokens_per_pos"] == [3, 2, 0]
    assert stats["mean_acceptance_length"] == 1 + 5 / 4
    assert stats["acceptance_rate"] == 5 / 12


def test_what_the_server_refuses_is_told(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Handler) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"error": "prompt too long"}')

    monkeypatch.setattr(Handler, "do_POST", refuse)
    with pytest.raises(RuntimeError, match=r"400 .*prompt too long"):
        answered([])


def test_speculation_is_vllms_own_form() -> None:
    assert vllm._speculation("plain", 5, None) is None
    assert vllm._speculation("ngram", 3, "")["num_speculative_tokens"] == 3  # type: ignore[index]
    assert vllm._speculation("eagle3", 4, "here") == {"method": "eagle3", "num_speculative_tokens": 4, "model": "here"}
    with pytest.raises(ValueError, match="needs draft"):
        vllm._speculation("eagle3", 4, "")
