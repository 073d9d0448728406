"""The commands beside the server itself, `homebase-console NAME ...`: each a Typer app that is imported when called."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from server.errors import StartupError

COMMANDS = {
    "history": "console.history_command",
    "bench": "console.bench.command",
    "client": "console.client_settings.command",
}
"""Name to the module whose `app` it is."""


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names. Returns its exit code.

    Raises StartupError for flags that cannot be, and any HomebaseError that the command itself raises.
    """
    import typer

    name, *rest = arguments
    app: typer.Typer = importlib.import_module(COMMANDS[name]).app
    try:
        code = app(rest, prog_name=f"homebase-console {name}", standalone_mode=False)
    except typer.TyperException as error:
        raise StartupError(f"{error.format_message().rstrip('.')}; see homebase-console {name} --help.") from None
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0
