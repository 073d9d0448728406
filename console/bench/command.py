"""`homebase-console bench fan-out`: what several streams at once do to each other, with the policy off and on."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from console.bench.client import Client
from console.bench.fan_out import (
    DEFAULT_FLOOR_TPS,
    Case,
    Outcome,
    conclude,
    parse_contexts,
    parse_streams,
    plan_cases,
)
from console.bench.plot import draw_bars
from console.bench.private_server import PrivateServer
from console.bench.report import EXPLAINED, Run, build_table, describe_machine, list_faults, save
from console.format import safe_text
from console.running_policy import read_policy
from console.terminal import draws_ascii_only
from server.errors import StartupError
from server.policy import Policy

WARM_UP = Case("off", 16, 1)
"""Run first and not told: a first step compiles."""
_WARM_UP_TOKENS = 8

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """Experiments on this machine with the model that is served."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("fan-out")
def fan_out(
    streams: Annotated[str, typer.Option(metavar="COUNTS", help="Streams at once: 4, 1..4 or 1,2,4.")] = "1..4",
    context: Annotated[str, typer.Option(metavar="TOKENS", help="Lengths of the prompts: 2k,8k or 2048.")] = "2k,8k",
    tokens: Annotated[int, typer.Option(min=2, max=65536, help="Tokens that each stream may generate.")] = 256,
    model: Annotated[str | None, typer.Option(metavar="PATH", help="Another model than homebase.toml names.")] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="A server that runs, instead of one of its own.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the results go.")] = Path("homebase-bench"),
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="The homebase.toml whose limits are tried.")
    ] = None,
) -> int:
    """Run a parent and its children at once, with everybody let in and under the policy, and compare.

    Starts a server of its own and ends it. A server that already runs (--url) is measured under the limits that it
    has; its key is read from $HOMEBASE_API_KEY.
    """
    counts, contexts = _parse(parse_streams, "--streams", streams), _parse(parse_contexts, "--context", context)
    if url is not None and model is not None:
        raise StartupError("--url measures the model that is served there; leave out --model.")
    policy = _with_model(read_policy(config), model)
    screen = Console(highlight=False, stderr=False)
    experiment = Experiment(policy, counts, contexts, tokens, url, screen)
    try:
        asyncio.run(_run_until_signal(experiment))
    except (KeyboardInterrupt, asyncio.CancelledError):
        experiment.interrupted = True
        screen.print("Interrupted; nothing that it started runs any more.", markup=False)
    if experiment.outcomes:
        _show(screen, experiment.describe(), out)
    return 130 if experiment.interrupted else 1 if list_faults(experiment.outcomes) else 0


class Experiment:
    """One run, and what has been measured so far."""

    def __init__(
        self,
        policy: Policy,
        streams: Sequence[int],
        contexts: Sequence[int],
        tokens: int,
        url: str | None,
        screen: Console,
    ) -> None:
        """Without a `url` a private server runs both halves; with one the limits there are tried as they are."""
        self._policy, self._tokens, self._url, self._screen = policy, tokens, url, screen
        self._widest = max(streams)
        self._cases = plan_cases(contexts, streams, ("off", "on") if url is None else ("on",))
        self._model, self._limits, self._floor_tps = "", dict[str, Any](), DEFAULT_FLOOR_TPS
        self.outcomes: list[Outcome] = []
        self.interrupted = False

    async def run(self) -> None:
        """Measure every case; nothing that was started is left when this ends, by whatever."""
        async with self._serve() as (client, server):
            served = await client.read_served()
            self._model = served.model
            self._check_room(served.context_tokens)
            seed, mode = time.time_ns() // 1000 % 1_000_000_000, "off"
            await client.run(WARM_UP, served.model, _WARM_UP_TOKENS, seed)
            for number, case in enumerate(self._cases, 1):
                if server is not None and case.mode != mode:
                    await server.apply(case.mode)
                mode = case.mode
                self._tell(number, case)
                self.outcomes.append(await client.run(case, served.model, self._tokens, seed + 1000 * number))
            await self._read_limits(client)

    def describe(self) -> Run:
        """All that can be told by now."""
        from importlib.metadata import version

        return Run(
            kind="fan-out",
            time=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            version=version("homebase-console"),
            machine=describe_machine(),
            command=shlex.join(["homebase-console", *sys.argv[1:]]),
            model=safe_text(self._model),
            tokens=self._tokens,
            floor_tps=self._floor_tps,
            policy=self._limits,
            outcomes=tuple(self.outcomes),
            interrupted=self.interrupted,
        )

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[tuple[Client, PrivateServer | None]]:
        self._read_own_limits()
        server = None
        if self._url is None:
            self._screen.print(f"Starting a server with {safe_text(self._policy.model.path)} ...", markup=False)
            server = PrivateServer(self._policy, self._widest)
        try:
            if server is not None:
                await server.wait_ready()
            client = Client(server.url if server else _root(self._url or ""), os.environ.get("HOMEBASE_API_KEY"))
            try:
                yield client, server
            finally:
                await client.close()
        finally:
            if server is not None:
                server.stop()

    def _read_own_limits(self) -> None:
        self._limits = msgspec.to_builtins(self._policy.policy)
        self._floor_tps = self._policy.policy.min_decode_tps or DEFAULT_FLOOR_TPS

    async def _read_limits(self, client: Client) -> None:
        """Of a server that is not ours: the limits that it says it has."""
        if self._url is None:
            return
        values = (await client.read_snapshot())["policy"]["values"]
        self._limits = {name.removeprefix("policy."): value for name, value in values.items() if "policy." in name}
        self._floor_tps = self._limits.get("min_decode_tps") or DEFAULT_FLOOR_TPS

    def _check_room(self, context_tokens: int | None) -> None:
        needed = max(case.context_tokens for case in self._cases) + self._tokens
        if context_tokens is not None and needed > context_tokens:
            raise StartupError(
                f"The longest prompt and its answer are {needed:,} tokens, and {self._model} has a context of "
                f"{context_tokens:,}; give a shorter --context or fewer --tokens."
            )

    def _tell(self, number: int, case: Case) -> None:
        self._screen.print(
            f"{number} of {len(self._cases)}: {case.streams} at {case.context_tokens:,} tokens, policy {case.mode}",
            markup=False,
        )


def _show(screen: Console, run: Run, out: Path) -> None:
    screen.print(build_table(run.outcomes))
    screen.print(EXPLAINED, markup=False)
    screen.print()
    screen.print(draw_bars(run.outcomes, run.floor_tps, ascii_only=draws_ascii_only(os.environ)), markup=False)
    for sentence in (*conclude(run.outcomes), *list_faults(run.outcomes)):
        screen.print()
        screen.print(sentence, markup=False)
    screen.print()
    for path in save(run, out):
        screen.print(f"Saved {safe_text(str(path))}", markup=False, soft_wrap=True)


async def _run_until_signal(experiment: Experiment) -> None:
    """SIGTERM and SIGHUP end the run as Ctrl+C does, unless they were to be ignored, as under nohup."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    await experiment.run()


def _with_model(policy: Policy, model: str | None) -> Policy:
    if model is None:
        return policy
    return msgspec.structs.replace(policy, model=msgspec.structs.replace(policy.model, path=model))


def _root(url: str) -> str:
    """The server's root, for a URL given with /v1 or without."""
    return url.rstrip("/").removesuffix("/v1")


def _parse(parse: Callable[[str], tuple[int, ...]], flag: str, text: str) -> tuple[int, ...]:
    try:
        return parse(text)
    except ValueError as error:
        raise StartupError(f"{flag}: {error}") from None
