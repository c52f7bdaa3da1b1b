"""What is read of a conversation written elsewhere is what would have been kept had the target written it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slimtier.errors import ConfigError, InputError
from slimtier.loading import Loaded
from slimtier.train import capture as work
from slimtier.train import reader as reading
from slimtier.train import served
from slimtier.train.answered import NO_ANSWER, TOO_LONG, Answered
from slimtier.train.answers import AnswerWriter
from slimtier.train.prompts import Conversation, PromptFile
from slimtier.train.reader import TranscriptReader
from slimtier.train.served import Server
from slimtier.train.transcript import Room, Transcript, cut_loop, recite, transcribe
from slimtier.train.turns import Dialogue, closing_token
from tests.train import dialogues
from tests.train.test_answers import SETTINGS, same, write

PROMPTS = PromptFile((Conversation("s", ("tell me", "go on")), Conversation("s", ("the rain",))), {})
ROOM = Room(prompt=80, answer=24, capacity=200)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return dialogues.loaded(tmp_path_factory.mktemp("tiny"))


def transcript(row: Answered) -> Transcript:
    greedy = SETTINGS.temperatures[row.number % len(SETTINGS.temperatures)] == 0
    answer = tuple(map(bool, row.answer.tolist()))
    return Transcript(row.number, tuple(row.token_ids.tolist()), answer, greedy)


def read(model: Loaded, transcripts: list[Transcript], **changes: Any) -> tuple[TranscriptReader, list[Answered]]:
    reader = TranscriptReader(model.target, replace(SETTINGS, **changes))
    return reader, list(reader.read(iter(transcripts)))


@pytest.mark.parametrize("positions", [4096, 90, 1])
def test_reading_keeps_what_writing_kept(model: Loaded, positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "POSITIONS", positions)
    written = write(model, SETTINGS)
    reader, rows = read(model, [transcript(row) for row in written.values()])
    assert [row.number for row in rows] == list(written)
    assert all(same(row, written[row.number]) for row in rows)
    assert reader.finished == len(written)
    greedy = [row for row in written.values() if transcript(row).greedy]
    assert reader.greedy_tokens == reader.agreed == sum(len(row.top_ids) for row in greedy) > 0


def test_what_has_no_answer_or_a_long_prompt_is_counted(model: Loaded) -> None:
    rows = [Transcript(0, (1, 5, 6), (False,) * 3), Transcript(1, (5,) * 99, (False,) * 99)]
    reader, kept = read(model, rows)
    assert kept == []
    assert reader.dropped == {NO_ANSWER: 1, TOO_LONG: 1}


def test_given_answers_stand_between_the_template_s_words(model: Loaded) -> None:
    said = Conversation("s", ("tell me", "go on"), "be brief", ("the rain", "the sea"))
    (row,) = recite(model.tokenizer, [said], set(), ROOM)
    answers = [token for token, marked in zip(row.token_ids, row.answer, strict=True) if marked]
    encode = model.tokenizer.encode
    closed = [[*encode(text, add_special_tokens=False), dialogues.EOS] for text in said.answers]
    assert answers == [*closed[0], *closed[1]]
    roles = ("system", "user", "assistant", "user", "assistant")
    texts = ("be brief", "tell me", "the rain", "go on", "the sea")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    whole = encode(model.tokenizer.render_chat(messages, add_generation_prompt=False), add_special_tokens=False)
    assert list(row.token_ids) == whole[: len(row.token_ids)]
    assert not row.greedy


def test_a_conversation_ends_where_there_is_no_room(model: Loaded) -> None:
    said = Conversation("s", ("tell me", "go on"), None, ("the rain " * 9, "the sea"))
    for capacity in (20, 40):
        (row,) = recite(model.tokenizer, [said], set(), Room(80, 1, capacity))
        assert len(row.token_ids) == len(row.answer) == capacity
    (long,) = recite(model.tokenizer, [said], set(), Room(3, 1, 200))
    assert not any(long.answer)
    assert [row.number for row in recite(model.tokenizer, [said] * 3, {0, 2}, ROOM)] == [1]


def test_an_answer_is_closed_by_the_template_s_token_or_the_model_s(model: Loaded) -> None:
    assert closing_token(model.tokenizer) == dialogues.EOS
    assert closing_token(dialogues.tokenizer(None)) == dialogues.EOS
    with pytest.raises(InputError, match="no token that ends an answer"):
        closing_token(replace(dialogues.tokenizer(None), eos_token_ids=()))


def test_a_loop_is_cut_where_writing_would_have_stopped() -> None:
    assert cut_loop([1, 2, 3] * 60) == ([1, 2, 3] * 60)[:128]
    assert cut_loop(list(range(300))) == list(range(300))


@dataclass
class Speaker:
    """A server of the OpenAI protocol that writes with a target; `ids`: whether it gives the tokens, as vLLM does."""

    model: Loaded
    ids: bool = True
    models: tuple[str, ...] = ("tiny",)
    twist: int = 0  # added to each token: another model
    failing: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        target = self.model.target
        with self.lock:
            self.asked.append(request)
            cache, tokens, written = target.begin(1, 256), request["prompt"], []
            while len(written) < request["max_tokens"] and written[-1:] != [dialogues.EOS]:
                hidden, _ = target.forward(tokens, cache, [len(tokens)])
                tokens = [(int(target.head(hidden[-1:]).argmax()) + self.twist) % 96]
                written += tokens
        ended = written[-1] == dialogues.EOS
        choice = {"index": 0, "finish_reason": "stop" if ended else "length", "logprobs": None}
        choice["text"] = self.model.tokenizer.decode(written)
        if self.ids:
            choice["token_ids"] = written[:-1] if ended else written
        return {"id": "1", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice]}


@contextmanager
def speaking(speaker: Speaker) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "me"} for name in speaker.models]
            self.answer(200, {"object": "list", "data": listed})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if speaker.failing:
                self.answer(400, {"error": {"message": "out of room"}})
            else:
                self.answer(200, speaker.complete(request))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, address: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def capture(model: Loaded, speaker: Speaker, directory: Path, tokens: int = 60, **changes: Any) -> work.Captured:
    settings = replace(SETTINGS, temperatures=(0.0,), **changes)
    with speaking(speaker) as address:
        server = Server(address, model.tokenizer)
        try:
            return work.capture(model, PROMPTS, directory, settings, work.Plan(tokens, 0, 10**8), answers=server)
        finally:
            server._client.close()


def test_a_server_s_answers_are_kept_as_if_the_target_had_written_them(model: Loaded, tmp_path: Path) -> None:
    speaker = Speaker(model)
    captured = capture(model, speaker, tmp_path / "served")
    assert captured.answer_tokens >= 60
    assert all(request["temperature"] == 0 and request["max_tokens"] == 24 for request in speaker.asked)
    settings = replace(SETTINGS, temperatures=(0.0,))
    dialogue = Dialogue(model.tokenizer, Conversation("s", ("tell me", "go on")))
    (ours,) = AnswerWriter(model.target, settings, (dialogues.EOS,)).write(iter([(0, dialogue)]))

    def complete(tokens: Any, asking: bool) -> list[int]:
        answer = speaker.complete({"prompt": list(tokens), "max_tokens": 24})["choices"][0]
        return [*answer["token_ids"], *([dialogues.EOS] if answer["finish_reason"] == "stop" else [])]

    theirs = transcribe(0, Dialogue(model.tokenizer, Conversation("s", ("tell me", "go on"))), complete, (2,), ROOM)
    assert list(theirs.token_ids) == ours.token_ids.tolist()
    assert list(theirs.answer) == [bool(marked) for marked in ours.answer]
    assert json.loads((tmp_path / "served" / "capture.json").read_text())["answers"] == "server"
    with pytest.raises(ConfigError, match="was captured with answers 'server', not 'own'"):
        work.capture(model, PROMPTS, tmp_path / "served", settings, work.Plan(60, 0, 10**8))


def test_text_alone_is_made_into_tokens(model: Loaded, tmp_path: Path) -> None:
    assert capture(model, Speaker(model, ids=False), tmp_path).answer_tokens >= 60


def test_a_server_of_another_model_is_found_out(model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "ENOUGH", 40)
    with pytest.raises(ConfigError, match=r"only 0% of the tokens .* serve the same model"):
        capture(model, Speaker(model, twist=7), tmp_path, tokens=10_000)


def test_a_token_that_the_model_does_not_have_is_refused(model: Loaded, tmp_path: Path) -> None:
    speaker = Speaker(model)
    speaker.complete = lambda request: {**answer, "choices": [{**answer["choices"][0], "token_ids": [10**6]}]}  # type: ignore[method-assign]
    answer = Speaker(model).complete({"prompt": [1, 5], "max_tokens": 3})
    with pytest.raises(ConfigError, match="wrote a token that this model does not have"):
        capture(model, speaker, tmp_path)


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_a_server_with_no_or_several_models_is_refused(model: Loaded, tmp_path: Path, models: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"has {len(models)} models"):
        capture(model, Speaker(model, models=models), tmp_path)


def test_a_server_that_is_not_there_or_fails_is_one_line(model: Loaded, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        Server("http://127.0.0.1:9/v1", model.tokenizer)
    with pytest.raises(InputError, match=r"failed: .*out of room.*the same command goes on"):
        capture(model, Speaker(model, failing=True), tmp_path)
