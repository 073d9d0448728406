"""`homebase-console client`: prints the settings of an agent that fit the limits here, or merges them into its file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, cast

import httpx
import typer

from console.client_settings.clients import CLIENTS
from console.client_settings.merge import PASTE, write_settings
from console.client_settings.shape import KEY_VARIABLE, Client, Given, Settings, build_given
from console.client_settings.writing import apply_change, plan_change
from console.format import base_url, safe_text
from console.running_policy import read_policy
from server.errors import StartupError
from server.models.folder import model_name

_ASK_S = 2.0
"""How long a server may take to say what it serves; one that runs answers in milliseconds."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def show_client(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A client; without one they are listed.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Merge them into the client's file, after a look.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --write: do not ask.")] = False,
    path: Annotated[Path | None, typer.Option(metavar="FILE", help="Another file than the client's usual one.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="The homebase.toml to use.")] = None,
) -> int:
    """Print the settings of a coding agent that fit the limits of this server, or write them into its file.

    With --write the difference is shown first and a backup is kept beside the file; nothing else is written.
    """
    if name is None:
        _list_clients()
        return 0
    client = CLIENTS.get(name)
    if client is None:
        raise StartupError(f"No client {name!r} is known; there are {', '.join(CLIENTS)}.")
    given, notes = ask_server(config)
    settings = client.build(given)
    file = path or client.find_file(Path.home(), os.environ)
    if not write:
        _print_settings(client, settings, file, notes)
        return 0
    if client.format is None or file is None:
        raise StartupError(f"{client.title} is told by its environment; put the printed lines into your shell's file.")
    return _write(client, settings, file, notes, yes)


def ask_server(config: str | None) -> tuple[Given, tuple[str, ...]]:
    """The server of homebase.toml as its clients must know it, and what the reader should know of that.

    It need not run: then its file tells what it can.
    """
    policy = read_policy(config)
    url = base_url(policy.server.host, policy.server.port)
    key = os.environ.get(KEY_VARIABLE)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.get(f"{url}/models", headers=headers, timeout=_ASK_S, trust_env=False)
        answer.raise_for_status()
        served: dict[str, Any] = answer.json()["data"][0]
        return build_given(policy, url, str(served["id"]), served.get("context_length")), ()
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        given = build_given(policy, url, model_name(policy.model.path), None)
        unsaid = "" if given.context_tokens else ", and the length of its context is left out"
        return given, (
            f"No server says at {url} what it serves: the model's name is homebase.toml's{unsaid}. "
            "Start it and call this again to have both as they are.",
        )


def _list_clients() -> None:
    for name, client in CLIENTS.items():
        file = client.find_file(Path.home(), os.environ)
        typer.echo(f"{name:<13}{client.title:<13}{safe_text(_shorten(file)) if file else 'variables in the shell'}")
    typer.echo("\nhomebase-console client NAME prints its settings; with --write they are merged into the file.")


def _print_settings(client: Client, settings: Settings, file: Path | None, notes: tuple[str, ...]) -> None:
    if client.format is not None and file is not None:
        typer.echo(f"{safe_text(_shorten(file))}:\n")
        typer.echo(write_settings(settings.values, client.format))
    if settings.shell:
        typer.echo("In a shell:\n")
        typer.echo("\n".join(settings.shell) + "\n")
    _print_notes((*settings.notes, *notes))


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(safe_text(note))


def _write(client: Client, settings: Settings, file: Path, notes: tuple[str, ...], yes: bool) -> int:
    if client.format is None:
        raise StartupError(f"{client.title} has no file. {PASTE}")
    change = plan_change(file, settings.values, client.format)
    _print_notes(notes)
    if not change.diff:
        typer.echo(f"{safe_text(str(file))} says so already.")
        return 0
    typer.echo("\n".join(safe_text(line) for line in change.diff.split("\n")))
    if not yes and not _confirm(f"Write {safe_text(str(file))}?"):
        typer.echo("Nothing was written.")
        return 1
    backup = apply_change(change, time.time())
    typer.echo(f"Written.{f' What was there is in {safe_text(str(backup))}' if backup else ''}")
    return 0


def _confirm(question: str) -> bool:
    """A person's yes; without a terminal to ask at, nobody said it."""
    if not cast("bool", sys.stdin.isatty()):
        raise StartupError("There is no terminal to ask at; look at the difference above and give --yes.")
    return typer.confirm(question)


def _shorten(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
