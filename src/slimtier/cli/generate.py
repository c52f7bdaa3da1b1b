"""`slimtier generate`: one answer."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

import typer

from slimtier.cli import common
from slimtier.errors import InputError


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    model: common.Model = common.DEFAULT_MODEL,
    drafter: common.Drafter = "auto",
    verifier: common.Verifier = "lossless",
    tiers: common.Tiers = None,
    route: common.Route = None,
    lossless: common.Lossless = False,
    runtime: common.Runtime = "auto",
    precision: common.Precision = "auto",
    max_new_tokens: common.MaxNewTokens = 256,
    temperature: common.Temperature = 0.0,
    seed: common.Seed = None,
    threads: common.Threads = None,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text, ids, numbers.")] = False,
) -> None:
    """Answer one prompt: the text on stdout as it is written, then one line of numbers on stderr.

    The prompt goes through the model's chat template if it has one; --set raw=true continues it as it stands.

    Example: slimtier generate "Why is the sky blue?" --max-new-tokens 64 --set num_speculative_tokens=5
    """
    flags = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    settings = common.read_settings(set_, flags)
    text = common.read_stdin() if prompt == "-" else prompt
    if not text:
        raise InputError("the prompt is empty: give at least one token")
    choices: dict[str, Any] = {
        "drafter": drafter,
        "verifier": verifier,
        "tiers": tiers,
        "route": route,
        "lossless": lossless,
    }
    engine = common.open_engine(model, settings, **choices, runtime=runtime, precision=precision, threads=threads)
    chat = engine.tokenizer is not None and engine.tokenizer.has_chat_template and not settings.raw
    asked: Any = [{"role": "user", "content": text}] if chat else text
    with engine.stream(asked, **settings.request) as stream:
        for step in stream:
            if not json:
                sys.stdout.write(step.text)
                sys.stdout.flush()
    result = stream.result
    assert result is not None
    audit = None if result.lossless else common.audited(engine, asked, result, settings.request)
    if json:
        found = {} if audit is None else {"audit": {"differs": audit.mean, "shortfall": audit.shortfall_quantiles()}}
        typer.echo(json_module.dumps(result.to_dict() | found, ensure_ascii=False))
        return
    typer.echo()
    common.note(common.summary(result))
    if audit is not None:
        common.note(f"audit: {audit.mean:.1%} of the tokens are not the target's most probable ones there")
