"""`homebase-console history`: what was asked of the server and what came of it. Needs no server, but its file."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.console import Console

from console.config_file import find_config
from console.format import safe_text
from console.history_table import build_table, describe_whole
from server.errors import StartupError
from server.history.file import find_file
from server.history.moments import EXAMPLES, parse_moment
from server.history.reader import HistoryReader
from server.history.records import RequestRecord
from server.policy_file.document import EMPTY, read_document
from server.policy_file.replace import read_bytes

PIPE_COLUMNS = 160
"""Of a table that nobody's terminal shows."""

FIELDS = (*RequestRecord.__struct_fields__, "acceptance_ratio")
"""What --json and --csv tell of each request, in this order."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def show_history(
    since: Annotated[str, typer.Option(metavar="WHEN", help=f"From when on: {EXAMPLES}.")] = "2h",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Up to when; now when not given.")] = None,
    refusals: Annotated[bool, typer.Option("--refusals", help="Only what was refused, and why.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header.")] = False,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="The homebase.toml to use.")] = None,
) -> None:
    """List the requests that the server has answered or refused, oldest first. No text of theirs is kept."""
    if as_json and as_csv:
        raise StartupError("--json and --csv cannot both be; give one of them.")
    span = _read_span(since, until, time.time())
    with HistoryReader(find_history(config)) as reader:
        requests = reader.read_requests(*span, refused_only=refusals)
        try:
            _print(requests, as_json=as_json, as_csv=as_csv, refused_only=refusals)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_history(config: str | None) -> Path:
    """The file that homebase.toml names. Raises PolicyInvalid for one that is not in order, and StartupError."""
    path = find_config(config, os.environ, Path.cwd())
    data = read_bytes(path)
    document = EMPTY if data is None else read_document(data, path.name)
    return find_file(document.policy.history.path)


def _read_span(since: str, until: str | None, now_s: float) -> tuple[float, float]:
    since_s = _read_moment("--since", since, now_s)
    until_s = math.inf if until is None else _read_moment("--until", until, now_s)
    if since_s >= until_s:
        raise StartupError(f"--since {since} is not before --until {until}; spans count back from now.")
    return since_s, until_s


def _read_moment(flag: str, text: str, now_s: float) -> float:
    try:
        return parse_moment(text, now_s)
    except ValueError as error:
        raise StartupError(f"{flag}: {error}") from None


def _print(requests: Iterator[RequestRecord], *, as_json: bool, as_csv: bool, refused_only: bool) -> None:
    if as_json:
        for request in requests:
            print(json.dumps(_to_fields(request)))  # in ASCII: nothing in it can steer a terminal
    elif as_csv:
        _print_csv(requests, sys.stdout)
    else:
        _print_table(list(requests), refused_only)


def _print_csv(requests: Iterator[RequestRecord], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for request in requests:
        writer.writerow(safe_text(cell) if isinstance(cell, str) else cell for cell in _to_fields(request).values())


def _print_table(requests: list[RequestRecord], refused_only: bool) -> None:
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=PIPE_COLUMNS if is_wide else None, highlight=False)
    if not requests:
        console.print(f"Nothing was {'refused' if refused_only else 'asked'} in this time.", markup=False)
        return
    console.print(build_table(requests, console.width, time.time(), refused_only=refused_only))
    console.print()
    console.print(describe_whole(requests), markup=False)


def _to_fields(request: RequestRecord) -> dict[str, Any]:
    return msgspec.structs.asdict(request) | {"acceptance_ratio": request.acceptance_ratio}
