"""Six families of agents, each with the headers and bodies that it sends, on one server with the policy as shipped."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest

DEADLINE_S = 40.0
LONG = 20_000
"""Tokens of an answer that is meant to be still open when the test has done its part."""
NO_END = {"0": -100, "2": -100}
"""Nano's tokens at which an answer would end; the chat dialect alone can forbid them."""
SYSTEM = "You are a coding agent."
TASK = "Write a Python class with many methods."
COUNT = "Count from 1 to 5000, one per line."
"""With tools like Claude Code's beside the one, and like Codex's beside the other, nano finds no end."""

_numbers = itertools.count(1)


class Turn:
    """One streamed request, read along on a thread of its own until it ends or its client hangs up."""

    def __init__(self, url: str, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        self.text = ""
        self.status = 0
        self.request_id = ""
        self.headers = httpx.Headers()
        self.ended = threading.Event()
        self._is_left = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, body, headers), daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Close the connection at the next line, and wait until it is closed."""
        self._is_left.set()
        assert self.ended.wait(DEADLINE_S)

    def finish(self) -> str:
        """All that came, to the end."""
        assert self.ended.wait(DEADLINE_S)
        return self.text

    def _read(self, url: str, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        try:
            with httpx.stream("POST", url, json=body, headers=headers, timeout=90) as response:
                self.headers, self.request_id = response.headers, response.headers.get("x-request-id", "")
                self.status = response.status_code
                for line in response.iter_lines():
                    self.text += line + "\n"
                    if self._is_left.is_set():
                        return
        except httpx.HTTPError as error:
            self.text += repr(error)
        finally:
            self.ended.set()


class Family(msgspec.Struct, frozen=True):
    """What tells one family's requests from another's."""

    name: str
    path: str
    user_agent: str
    refusal_status: int
    """With `refusal_status = "auto"`."""
    spawn_tool: str
    spawn_argument: str = "prompt"
    by_prompt: bool = False
    """True where no header names a parent."""
    is_known: bool = True
    """False where no header names a session either."""


FAMILIES = (
    Family("grok", "chat/completions", "grok-shell/1.0.8 (linux; x86_64)", 429, "spawn_subagent", by_prompt=True),
    Family("claude-code", "messages?beta=true", "claude-cli/2.1.197 (external, cli)", 429, "Agent"),
    Family("codex", "responses", "codex_exec/0.171.0 (Ubuntu 24.4.0; x86_64)", 400, "spawn_agent", "message"),
    Family("opencode", "chat/completions", "opencode/1.18.33 ai-sdk/provider-utils/3.0.20 runtime/bun", 400, "task"),
    Family("qwen", "chat/completions", "QwenCode/0.15.10 (linux; x64)", 400, "agent", by_prompt=True, is_known=False),
    Family("pi", "chat/completions", "OpenAI/JS 6.26.0", 429, "delegate", by_prompt=True, is_known=False),
)


class Session(msgspec.Struct, frozen=True):
    """One conversation of an agent, as its program knows it."""

    name: str
    prompt: str
    parent: Session | None = None

    @property
    def depth(self) -> int:
        """Steps to the agent that a person started."""
        return 0 if self.parent is None else self.parent.depth + 1


class Agents:
    """The programs of one family at work on a server."""

    def __init__(self, server: Any, family: Family) -> None:
        self.server, self.family = server, family
        self._turns: list[Turn] = []

    def begin(self) -> Session:
        """A person starts an agent."""
        number = next(_numbers)
        return Session(f"{self.family.name}-{number}", self._choose_task(number))

    def spawn(self, parent: Session) -> Session:
        """An agent starts another: where no header will say so, the model is made to call the tool for it."""
        number = next(_numbers)
        prompt = self._choose_task(number)
        if self.family.by_prompt:
            prompt = f"{prompt} {parent.name} has started it."
            turn = self.ask(parent, max_tokens=400, spawns=prompt)
            assert prompt in "".join(_list_arguments(turn.finish())), turn.text
        return Session(f"{self.family.name}-{number}", prompt, parent)

    def ask(self, session: Session, max_tokens: int = LONG, spawns: str = "") -> Turn:
        """A turn of a session; with `spawns` its answer is a call that starts a child with that prompt."""
        return self._send(self._build_body(session.prompt, max_tokens, spawns), self._build_headers(session))

    def ask_title(self, session: Session) -> Turn:
        """The side request of a session: no tools, few tokens."""
        body = self._build_body(f"Give this conversation a title: {session.prompt}", 8)
        body.pop("tools")
        body.pop("tool_choice", None)
        return self._send(body, self._build_headers(session))

    def open(self, session: Session) -> Turn:
        """A long turn that has begun to bring text."""
        turn = self.ask(session)
        self.server.wait_until("a turn decodes", lambda: turn.ended.is_set() or self._decodes(turn), DEADLINE_S)
        assert not turn.ended.is_set(), (turn.status, turn.text)
        return turn

    def row(self, turn: Turn) -> dict[str, Any]:
        """What the server says of a turn."""
        rows = self.server.snapshot()["streams"]
        return next((row for row in rows if row["id"] == turn.request_id), {})

    def list_waiting(self) -> list[dict[str, Any]]:
        """The requests in line."""
        return [row for row in self.server.snapshot()["streams"] if row["queue_position"] is not None]

    def wait_idle(self) -> None:
        """Wait until nothing is in flight."""

        def is_idle() -> bool:
            return not self.server.snapshot()["admission"]["in_flight"]

        self.server.wait_until("nothing is in flight", is_idle, DEADLINE_S)

    def close(self) -> None:
        """Hang up everywhere."""
        for turn in self._turns:
            turn.hang_up()
        self.wait_idle()

    def _choose_task(self, number: int) -> str:
        """Where a session is known by how it begins, each begins in its own way."""
        if self.family.path == "responses":
            return COUNT
        return f"{TASK} It is no. {number}." if self.family.by_prompt else TASK

    def _decodes(self, turn: Turn) -> bool:
        return bool(turn.request_id) and self.row(turn).get("completion_tokens", 0) > 0

    def _send(self, body: dict[str, Any], headers: Mapping[str, str]) -> Turn:
        turn = Turn(f"{self.server.url}/v1/{self.family.path}", body, headers)
        self._turns.append(turn)
        return turn

    def _build_headers(self, session: Session) -> dict[str, str]:
        headers = {"user-agent": self.family.user_agent}
        parent = session.parent
        match self.family.name:
            case "grok":
                told = {"conv-id": session.name, "session-id": session.name, "req-id": f"r-{time.monotonic_ns()}"}
                told |= {"agent-id": "this-machine", "turn-idx": "1", "client-identifier": "grok-shell"}
                headers |= {f"x-grok-{name}": value for name, value in told.items()}
            case "claude-code":
                root = session
                while root.parent is not None:
                    root = root.parent
                headers |= {"anthropic-version": "2023-06-01", "x-claude-code-session-id": root.name}
                headers |= {"x-claude-code-agent-id": session.name} if parent else {}
                headers |= {"x-claude-code-parent-agent-id": parent.name} if parent and parent.parent else {}
            case "codex":
                headers |= {"session-id": session.name, "thread-id": session.name}
                headers |= {"x-codex-window-id": f"{session.name}:0", "originator": "codex_exec"}
                if parent:
                    headers |= {"x-codex-parent-thread-id": parent.name, "x-openai-subagent": "collab_spawn"}
            case "opencode":
                headers |= {"x-session-id": session.name, "x-session-affinity": session.name}
                headers |= {"x-parent-session-id": parent.name} if parent else {}
            case _:
                pass
        return headers

    def _build_body(self, text: str, max_tokens: int, spawns: str = "") -> dict[str, Any]:
        argument: dict[str, Any] = {"type": "string"} | ({"enum": [spawns]} if spawns else {})
        name = self.family.spawn_argument
        schema = {"type": "object", "properties": {name: argument}, "required": [name]}
        tool = {"name": self.family.spawn_tool, "description": "Starts one."}
        body: dict[str, Any] = {"model": "nano", "stream": True, "temperature": 0}
        if self.family.path == "responses":
            content = [{"type": "input_text", "text": text}]
            return body | {
                "instructions": SYSTEM,
                "input": [{"type": "message", "role": "user", "content": content}],
                "tools": [{"type": "function", "strict": False, "parameters": schema, **tool}],
                "tool_choice": "auto",
                "store": False,
                "include": ["reasoning.encrypted_content"],
                "max_output_tokens": max_tokens,
            }
        if self.family.path.startswith("messages"):
            return body | {
                "system": [{"type": "text", "text": SYSTEM}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
                "tools": [{**tool, "input_schema": schema}],
                "max_tokens": max_tokens,
            }
        return (
            body
            | {
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
                "tools": [{"type": "function", "function": {**tool, "parameters": schema}}],
                "tool_choice": {"type": "function", "function": {"name": tool["name"]}} if spawns else "auto",
                "stream_options": {"include_usage": True},
                "max_tokens": max_tokens,
            }
            | ({} if spawns else {"logit_bias": NO_END})
        )


def _list_arguments(stream: str) -> Iterator[str]:
    """The pieces of the arguments of a chat stream's calls."""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                for call in choice["delta"].get("tool_calls") or ():
                    yield call["function"].get("arguments") or ""


@pytest.fixture(scope="module")
def server(file_headless: Callable[..., Any]) -> Any:
    return file_headless()


@pytest.fixture(params=FAMILIES, ids=[family.name for family in FAMILIES])
def agents(server: Any, request: pytest.FixtureRequest) -> Iterator[Agents]:
    """A family's programs; their connections are closed after the test, and nothing is left in flight."""
    agents = Agents(server, request.param)
    agents.wait_idle()
    yield agents
    agents.close()
