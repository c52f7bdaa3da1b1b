"""Answers from a server that speaks the OpenAI protocol (vLLM, SGLang, llama.cpp), many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from itertools import islice
from threading import Event
from typing import Any

from slimtier.errors import ConfigError, InputError, MissingDependencyError
from slimtier.models.tokenizer import Tokenizer
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.answered import Answered
from slimtier.train.answers import Script
from slimtier.train.reader import TranscriptReader
from slimtier.train.transcript import Room, Transcript, cut_loop, transcribe
from slimtier.train.turns import closing_token

RETRIES, TIMEOUT_S = 5, 600.0
ENOUGH, LEAST = 1000, 0.8  # greedy tokens, and the share of them that must be the target's too


class Server:
    """The one at `address`, as http://localhost:8000/v1. It must serve the model whose `tokenizer` this is: what it
    writes is read by that. Raises ConfigError: no such server, or it serves none or several models."""

    def __init__(self, address: str, tokenizer: Tokenizer) -> None:
        self.address, self.tokenizer = address, tokenizer
        self._client = _client(address)
        self._model = _served(self._client, address)

    @cached_property
    def _closing(self) -> int:
        return closing_token(self.tokenizer)

    def complete(self, token_ids: Sequence[int], temperature: float, seed: int, settings: AnswerSettings) -> list[int]:
        """What the model writes after the tokens, its end of turn included. Raises InputError when the server fails."""
        import openai

        plain = {"top_k": settings.top_n if temperature else -1, "repetition_penalty": 1.0, "return_token_ids": True}
        try:
            answer = self._client.completions.create(
                model=self._model,
                prompt=list(token_ids),
                max_tokens=settings.max_new_tokens,
                temperature=temperature,
                top_p=1.0,
                seed=seed,
                extra_body=plain,
            )
        except openai.OpenAIError as error:
            raise InputError(
                f"{self.address} failed: {error}; what was captured is kept, the same command goes on"
            ) from error
        choice = answer.choices[0]
        # vLLM gives the tokens; of others the text is made into tokens again
        ids = getattr(choice, "token_ids", None) or self.tokenizer.encode(choice.text, add_special_tokens=False)
        if max(ids, default=0) >= self.tokenizer.vocab_size:
            raise ConfigError(f"{self.address} wrote a token that this model does not have: serve the same model")
        return [*ids, *self._missing_end(ids, choice.finish_reason)]

    def _missing_end(self, ids: Sequence[int], reason: str) -> list[int]:
        ended = bool(ids) and ids[-1] in self.tokenizer.eos_token_ids
        return [self._closing] if reason == "stop" and not ended else []


def served(
    server: Server, scripts: Iterator[tuple[int, Script]], settings: AnswerSettings, room: Room
) -> Iterator[Transcript]:
    """The conversations of `scripts` as the server has written them, whichever is done first; `rows` at a time."""
    ends = server.tokenizer.eos_token_ids
    over = Event()

    def converse(number: int, script: Script) -> Transcript:
        temperature = settings.temperature_of(number)

        def write(tokens: Sequence[int], asking: bool) -> list[int]:
            if over.is_set():
                return []
            seed = (settings.seed * 1_000_003 + number) % 2**31
            heat = 1.0 if asking else temperature  # greedy questions would all be the same one
            return cut_loop(server.complete(tokens, heat, seed, settings))

        return replace(transcribe(number, script, write, ends, room), greedy=temperature == 0)

    pool = ThreadPoolExecutor(settings.rows)
    try:
        writing: set[Future[Transcript]] = {pool.submit(converse, *one) for one in islice(scripts, settings.rows)}
        while writing:
            done, writing = wait(writing, return_when=FIRST_COMPLETED)
            writing |= {pool.submit(converse, *one) for one in islice(scripts, len(done))}
            yield from (one.result() for one in done)
    finally:
        over.set()  # what is being written is waited for at exit: let it be one answer
        pool.shutdown(wait=False, cancel_futures=True)


def alike(rows: Iterator[Answered], reader: TranscriptReader, server: Server) -> Iterator[Answered]:
    """`rows`. Raises ConfigError once it shows that the server writes what the target would not."""
    for row in rows:
        if reader.greedy_tokens >= ENOUGH and reader.agreed < LEAST * reader.greedy_tokens:
            raise ConfigError(
                f"only {reader.agreed / reader.greedy_tokens:.0%} of the tokens that {server.address} took for the "
                f"most probable are so for {reader.target.info.name}: serve the same model"
            )
        yield row


def _client(address: str) -> Any:
    try:
        import openai
    except ImportError:
        raise MissingDependencyError(
            "answers of a server need the OpenAI client: pip install 'slimtier[server]'"
        ) from None
    import os

    key = os.environ.get("OPENAI_API_KEY", "none")  # a server of one's own asks for none
    return openai.OpenAI(base_url=address, api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S)


def _served(client: Any, address: str) -> str:
    import openai

    try:
        models = [str(model.id) for model in client.with_options(max_retries=0).models.list()]
    except openai.OpenAIError as error:
        raise ConfigError(
            f"no server answers at {address} ({error}): start one, as `vllm serve MODEL`, or correct the address"
        ) from error
    if len(models) != 1:
        raise ConfigError(f"the server at {address} has {len(models)} models: it must serve one, the target")
    return models[0]
