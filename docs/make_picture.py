"""Makes docs/console.svg: the console in front of a real server with a parent and its child in flight.

    uv run python docs/make_picture.py [THEME] [FILE]

Nothing in the picture is staged but the load: nano is served, two agents' requests stream, two more are refused.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from console.app import HomebaseApp
from console.assets import config_template
from console.local import LocalSource
from console.themes import load_themes
from server.events import EventRing
from server.policy import LimitValue
from server.runtime import Runtime
from server.snapshot import Snapshot

SIZE = (120, 40)
PORT = 11234
PARENT = {"user-agent": "opencode/1.18.33", "x-homebase-session": "main"}
CHILD = {"user-agent": "opencode/1.18.33", "x-homebase-session": "explore", "x-homebase-parent-session": "main"}
OTHER = {"user-agent": "openai-python/3.57.0"}


async def take_picture(theme: str) -> str:
    """Serve, load, look: the SVG."""
    with tempfile.TemporaryDirectory() as scratch:
        overrides: dict[str, tuple[LimitValue, str]] = {
            "server.port": (PORT, "--port"),
            "policy.max_context_tokens": (8192, "--context"),
            "console.theme": (theme, "--theme"),
            "history.off": (True, "--no-history"),
        }
        config = Path(scratch) / "homebase.toml"
        runtime = Runtime(config, config_template().read_bytes(), overrides, EventRing())
        runtime.prepare()
        runtime.start()
        try:
            picture = await _show(runtime)
        finally:
            runtime.stop()
    return picture


async def _show(runtime: Runtime) -> str:
    await _until(runtime, lambda now: now.state == "serving")
    app = HomebaseApp(
        LocalSource(runtime), themes=load_themes(), policy=runtime.store.state.policy.console, auto_refresh=True
    )
    async with app.run_test(size=SIZE) as pilot, httpx.AsyncClient(timeout=120, trust_env=False) as client:
        parent = asyncio.create_task(_stream(client, PARENT, words=900, max_tokens=3000))
        await _until(runtime, lambda now: _decoded(now, 0) > 400)
        child = asyncio.create_task(_stream(client, CHILD, words=500, max_tokens=2000))
        await _until(runtime, lambda now: len(now.streams) == 2 and now.streams[1].phase == "prefill")
        for _ in range(2):
            await _stream(client, OTHER, words=20, max_tokens=200)
        await _until(runtime, lambda now: _decoded(now, 1) > 250)
        await pilot.pause(0.5)
        picture = app.export_screenshot(title="homebase-console")
        parent.cancel()
        child.cancel()
        await asyncio.gather(parent, child, return_exceptions=True)
    return picture


async def _stream(client: httpx.AsyncClient, headers: dict[str, str], *, words: int, max_tokens: int) -> None:
    content = " ".join(f"def step_{i}(x):" for i in range(words // 6))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    body |= {"stream": True, "temperature": 1.0, "seed": 4}
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
    async with client.stream("POST", url, json=body, headers=headers) as response:
        async for _ in response.aiter_bytes():
            pass


async def _until(runtime: Runtime, holds: Any) -> None:
    async with asyncio.timeout(120):
        while not holds(runtime.snapshot):  # noqa: ASYNC110 - a snapshot is an attribute, there is nothing to wait on
            await asyncio.sleep(0.05)


def _decoded(now: Snapshot, index: int) -> int:
    return now.streams[index].completion_tokens if len(now.streams) > index else 0


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "homebase-dark"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "console.svg"
    target.write_text(asyncio.run(take_picture(chosen)))
