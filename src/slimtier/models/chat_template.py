"""A model's chat template: jinja2 with the settings and helpers that transformers gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slimtier.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser


def render(
    template: str, messages: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, str], add_generation_prompt: bool
) -> str:
    """The text of a conversation. `special_tokens` are bos_token and the like, which templates may name.

    Raises InputError when the messages are malformed or the template does not take them.
    """
    if not messages:
        raise InputError("there are no messages; give at least one, such as {'role': 'user', 'content': '...'}")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InputError(f"a message is {{'role': ..., 'content': ...}}, got {message!r}; give it both keys")
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        return _compile(template).render(
            messages=plain, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **special_tokens
        )
    except Exception as error:  # a template is a program of the model's author: anything may come out of it
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the model's chat template refuses these messages ({cause}); pass a plain prompt") from error


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what an assistant wrote, for training; here its body stands as it is."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    extensions = [Generation, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
