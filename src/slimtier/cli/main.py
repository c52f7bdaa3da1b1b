"""The command `slimtier`: its verbs, and how an error reaches a person."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from slimtier.cli.advise import advise
from slimtier.cli.bench import bench
from slimtier.cli.calibrate import calibrate
from slimtier.cli.capture import capture
from slimtier.cli.chat import chat
from slimtier.cli.doctor import doctor
from slimtier.cli.generate import generate
from slimtier.cli.models import models
from slimtier.cli.repair import repair
from slimtier.cli.report import report
from slimtier.cli.route import route
from slimtier.cli.train import train
from slimtier.errors import SlimtierError

INTERRUPTED = 130
_UsageError: Any = typer.BadParameter.__base__


class OneLineErrors(TyperGroup):
    """Errors as one line on stderr, without a traceback: exit code 1, 2 for a wrong command line, 130 for Ctrl-C."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except SlimtierError as error:
            fail(str(error), 1)
        except _UsageError as error:
            hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
            fail(error.format_message().rstrip(".") + hint, error.exit_code)
        except (typer.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)


app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False)
app.command()(generate)
app.command()(chat)
app.command()(models)
app.command()(capture)
app.command()(train)
app.command()(doctor)
app.command()(route)
app.command()(calibrate)
app.command()(repair)
app.command()(report)
app.command()(bench)
app.add_typer(advise, name="advise")


def _print_version(asked: bool) -> None:
    if asked:
        import slimtier

        typer.echo(f"slimtier {slimtier.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def slimtier(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Decode a language model faster, and know what that did to the output.

    Example: slimtier generate "Explain why the sky is blue."
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ?
    app()
