"""The command `homebase-console`: reads flags, finds homebase.toml, and runs the server with or without a screen.

Whatever keeps it from starting is told in one sentence on stderr, with exit code 2, before any screen is drawn.
Textual is imported for the full-screen program only, MLX only once something is to be served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from console.commands import COMMANDS, run_command
from console.config_file import find_config, user_config
from server.errors import HomebaseError, PolicyInvalid
from server.policy import LimitValue

if TYPE_CHECKING:
    from console.terminal import EndSignals, Terminal
    from server.runtime import Runtime

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_CANNOT_START = 2

ABOUT = """\
Serve one local model to coding agents over an OpenAI-compatible API, at most
a parent and one child at a time, and watch and steer it from the terminal.

  homebase-console              the server and its full-screen console
  homebase-console --headless   the server alone; log lines go to stderr
  homebase-console history      what was asked, refused and answered lately
  homebase-console bench        what several streams at once do to each other
  homebase-console client       settings of your agent that fit the limits here
"""

NOTES = """\
homebase.toml is looked for in this order:
  1. --config FILE
  2. $HOMEBASE_CONFIG
  3. ./homebase.toml
  4. {user_config}
Without one, defaults hold; the console's first save creates it. Flags hold
for one run and are never written to it.

keys in the console:
  1 2 3 4  streams, refusals, policy, log   enter    open or edit the selected
  e        edit the limits                  esc      back
  :        every command by name            ctrl+d   stop a stream (asks first)
  ?        all keys, and what signs mean    q        quit (asks while streams
                                                     are open)

ending it: q or ctrl+q in the console; SIGINT, SIGTERM and SIGHUP anywhere.
Open streams are ended with an error that their clients can read.

exit codes:
  0  ended as asked
  1  ended by a fault, or its terminal was closed
  2  could not start; the reason is on stderr
"""


class Options(msgspec.Struct, frozen=True):
    """The command line, read."""

    headless: bool
    config: Path
    overrides: dict[str, tuple[LimitValue, str]]
    """Dotted key to its value for this run and the flag that set it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of a usage block."""
        self.exit(EXIT_CANNOT_START, f"homebase-console: {message}; see --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code when it cannot start; once it has served, the process ends in here."""
    _open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in COMMANDS:
            return run_command(given)
        options = read_options(given)
        run_headless(options) if options.headless else run_console(options)
    except HomebaseError as error:
        return _cannot_start(str(error))
    except ImportError as error:
        return _cannot_start(f"a library is missing or does not work here ({error}); install homebase-console again.")


def read_options(arguments: Sequence[str]) -> Options:
    """What the flags mean. Raises PolicyInvalid for a value out of range, StartupError for a config that cannot be."""
    given = _build_parser().parse_args(arguments)
    flags = {"model.path": (given.model, "--model"), "server.host": (given.host, "--host")}
    overrides = {key: (_parse_flag(key, text, flag), flag) for key, (text, flag) in flags.items() if text is not None}
    if given.mtp is not None:
        overrides["engine.mtp"] = (_parse_flag("engine.mtp", given.mtp, "--mtp"), "--mtp")
    if given.port is not None:
        overrides["server.port"] = (_parse_flag("server.port", given.port, "--port"), "--port")
    return Options(
        headless=given.headless, config=find_config(given.config, os.environ, Path.cwd()), overrides=overrides
    )


def run_headless(options: Options) -> NoReturn:
    """Serve without a screen until a signal comes; log lines go to stderr. Raises what `Runtime.prepare` does."""
    from console.terminal import EndSignals
    from server.log import log_to_stderr

    with contextlib.closing(EndSignals()) as signals:
        runtime = _build_runtime(options)
        runtime.prepare()
        faulthandler.enable()
        with contextlib.closing(log_to_stderr(runtime.ring)):
            runtime.on_end = signals.wake
            runtime.start()
            while not runtime.ended.is_set() and not signals.wait():
                pass
            runtime.stop()
    _leave(EXIT_FAULT if runtime.fault else EXIT_OK)


def run_console(options: Options) -> NoReturn:
    """Serve with the full-screen console until the operator leaves it, a signal comes or the terminal is closed.

    Raises TerminalUnfit, and what `Runtime.prepare` does.
    """
    from console.terminal import EndSignals, check_terminal
    from server.log import log_to_file

    check_terminal()
    with contextlib.closing(EndSignals()) as signals:
        runtime = _build_runtime(options)
        policy = runtime.prepare()
        with contextlib.closing(log_to_file(runtime.ring, policy.server.port)) as logs:
            runtime.start()
            fault = _show(runtime, signals)
            runtime.stop()
    if fault is not None:
        sys.stderr.write(_describe_fault(fault, logs.path))
    _leave(EXIT_OK if fault is None else EXIT_FAULT)


def _open_standard_streams() -> None:
    """Stand the null device in for those that were closed, or the next file or socket takes the place of stderr."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process


def _build_runtime(options: Options) -> Runtime:
    from console.assets import config_template
    from server.events import EventRing
    from server.runtime import Runtime

    return Runtime(options.config, config_template().read_bytes(), options.overrides, EventRing())


def _show(runtime: Runtime, signals: EndSignals) -> Exception | None:
    """Run the full-screen program to its end; the fault that ended it, if one did, is in the log then."""
    from console.terminal import Terminal

    terminal = Terminal()
    try:
        fault = asyncio.run(_run_app(runtime, signals, terminal))
    except Exception as error:  # the console's edge
        terminal.restore()
        fault = error
    if fault is not None:
        logging.getLogger(__name__).error("the console broke", exc_info=fault)
    return fault


async def _run_app(runtime: Runtime, signals: EndSignals, terminal: Terminal) -> Exception | None:
    from rich.console import Console

    from console.app import HomebaseApp
    from console.local import LocalSource
    from console.terminal import Supervisor, draws_ascii_only
    from console.themes import load_themes

    looks = runtime.store.state.policy.console
    if draws_ascii_only(os.environ):
        looks = msgspec.structs.replace(looks, ascii=True)
    app = HomebaseApp(LocalSource(runtime), themes=load_themes(), policy=looks)
    # Textual would print a screenful of frames and their variables; our log gets the frames.
    app.error_console = Console(file=io.StringIO())
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(signals, terminal, runtime.stop, lambda: loop.call_soon_threadsafe(app.exit))
    supervisor.start()
    try:
        await app.run_async(mouse=looks.mouse)
    finally:
        supervisor.screen_left()
    # Private, and the only place where Textual (8.2) leaves what ended it.
    return getattr(app, "_exception", None)


def _describe_fault(fault: Exception, log_file: Path | None) -> str:
    details = f"details are in {log_file}" if log_file else "there is no log file to tell more"
    kind = f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
    return f"homebase-console: the console broke and was ended, the server with it ({kind}); {details}.\n"


def _leave(code: int) -> NoReturn:
    """End the process at once: everything is closed, and what is not would only hold it up.

    Python would wait for threads that cannot end in time (an engine step of a minute, a client that does not read),
    and MLX aborts in its destructors when a thread of its own is left (MLX 0.32.4 on Linux: 4 of 8 exits).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parse_flag(key: str, text: str, flag: str) -> LimitValue:
    from server.policy import parse_limit

    try:
        return parse_limit(key, text)
    except PolicyInvalid as error:
        raise PolicyInvalid(f"{flag}: {str(error).removeprefix(f'{key}: ')}", key=key) from None


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="homebase-console",
        description=ABOUT,
        epilog=NOTES.format(user_config=user_config()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--headless", action="store_true", help="serve without a screen; log to stderr")
    parser.add_argument("--config", metavar="FILE", help="the homebase.toml to use")
    parser.add_argument(
        "--model", metavar="PATH", help='folder of a checkpoint, OWNER/NAME on Hugging Face, or "nano", for this run'
    )
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen at, for this run (127.0.0.1)")
    parser.add_argument("--port", metavar="NUMBER", help="TCP port to listen at, for this run (11234)")
    parser.add_argument("--mtp", metavar="DEPTH", help='tokens to draft ahead, for this run: "auto", "off" or 1 to 4')
    parser.add_argument("--version", action="version", version=f"homebase-console {_version()}")
    return parser


def _version() -> str:
    from importlib.metadata import version

    return version("homebase-console")


def _cannot_start(sentence: str) -> int:
    from server.log import escape_controls

    # A file's own words are quoted in it, and a path can hold anything.
    with contextlib.suppress(OSError):  # a stderr that takes nothing: the exit code still tells
        sys.stderr.write(f"homebase-console: {escape_controls(' '.join(sentence.split()))}\n")
        sys.stderr.flush()
    return EXIT_CANNOT_START
