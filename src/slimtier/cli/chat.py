"""`slimtier chat`: a conversation, turn by turn, that reuses what the model has read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from slimtier.cli import common
from slimtier.errors import ConfigError, InputError

if TYPE_CHECKING:
    from slimtier.engine import Engine


def chat(
    model: common.Model = common.DEFAULT_MODEL,
    drafter: common.Drafter = "auto",
    verifier: common.Verifier = "lossless",
    tiers: common.Tiers = None,
    route: common.Route = None,
    lossless: common.Lossless = False,
    runtime: common.Runtime = "auto",
    precision: common.Precision = "auto",
    max_new_tokens: common.MaxNewTokens = 512,
    temperature: common.Temperature = 0.0,
    seed: common.Seed = None,
    threads: common.Threads = None,
    set_: common.Set = None,
) -> None:
    """Talk with a model. Ctrl-C stops a reply; /reset starts over; Ctrl-D or /exit ends.

    Example: slimtier chat --temperature 0.7 --set top_p=0.9
    """
    flags = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    settings = common.read_settings(set_, flags, extra=())
    choices: dict[str, Any] = {
        "drafter": drafter,
        "verifier": verifier,
        "tiers": tiers,
        "route": route,
        "lossless": lossless,
    }
    engine = common.open_engine(model, settings, **choices, runtime=runtime, precision=precision, threads=threads)
    if engine.tokenizer is None or not engine.tokenizer.has_chat_template:
        raise ConfigError(f"{model} has no chat template: use `slimtier generate`, or a model made for chat")
    messages: list[dict[str, str]] = []
    for line in lines():
        if line in ("/exit", "/reset"):
            if line == "/exit":
                return
            messages.clear()
            continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": reply(engine, messages, settings.request)})
        except InputError as error:  # such as a conversation that outgrew the context
            messages.pop()
            common.note(f"error: {error} (/reset starts over)")


def lines() -> Iterator[str]:
    """What the user types, or what is piped in; blank lines are skipped."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 (line editing for input())
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if line:
            yield line


def reply(engine: Engine, messages: list[dict[str, str]], request: Mapping[str, Any]) -> str:
    """Stream one reply and return its text: all of it, or what was written when Ctrl-C came."""
    pieces = []
    with engine.stream(messages, **request) as stream, common.interrupts() as interrupted:
        for step in stream:
            pieces.append(step.text)
            sys.stdout.write(step.text)
            sys.stdout.flush()
            if interrupted:
                break
    typer.echo()
    common.note("stopped" if stream.result is None else common.summary(stream.result))
    return "".join(pieces)
