"""`slimtier models`: what can be named without owning a file."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def models(json_: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False) -> None:
    """List the models that are fetched by a short name: size, licence, whether the cache has them."""
    from slimtier.models.aliases import ALIASES, DEFAULT_MODEL, cached_path, is_cached

    rows = [
        {
            "name": alias.name,
            "default": alias.name == DEFAULT_MODEL,
            "bytes": alias.size,
            "licence": alias.licence,
            "cached": is_cached(alias),
            "path": str(cached_path(alias)),
            "packages": list(alias.packages),
        }
        for alias in ALIASES.values()
    ]
    if json_:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "size", "licence", "in the cache")
    for alias in ALIASES.values():
        default = " (default)" if alias.name == DEFAULT_MODEL else ""
        state = "yes" if is_cached(alias) else "no, fetched on first use"
        table.add_row(alias.name + default, f"{alias.size / 1e6:.0f} MB", alias.licence, state)
    Console().print(table)
