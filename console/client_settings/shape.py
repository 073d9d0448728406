"""What settings are made from, and what they are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from server.policy import AdmissionPolicy, Policy

KEY_VARIABLE = "HOMEBASE_API_KEY"
"""Where a client is told to look for its key; the key itself is never written anywhere."""

NO_KEY = "unused"
"""Given as a key to a server that asks for none, by clients that insist on one."""

_OUTPUT_TOKENS = 8192
"""Of one answer, for clients that want to be told; what the runs in docs/clients.md had."""

Format = Literal["toml", "json", "yaml"]


class Given(msgspec.Struct, frozen=True):
    """A server as its clients must know it."""

    base_url: str
    """With /v1."""
    model: str
    context_tokens: int | None
    """What one request may have; None when nobody could say."""
    limits: AdmissionPolicy
    asks_key: bool

    @property
    def root_url(self) -> str:
        """Without /v1."""
        return self.base_url.removesuffix("/v1")

    @property
    def output_tokens(self) -> int:
        """Most tokens of one answer."""
        return _OUTPUT_TOKENS if self.context_tokens is None else max(1, min(_OUTPUT_TOKENS, self.context_tokens // 2))

    @property
    def shell_key(self) -> str:
        """A key as a shell's word."""
        return f'"${KEY_VARIABLE}"' if self.asks_key else NO_KEY

    @property
    def children(self) -> int:
        """Children that can be in flight at once in all: the parent keeps its place."""
        return min(self.limits.subagents.sampling_limit, max(1, self.limits.max_in_flight - 1))

    @property
    def children_each(self) -> int:
        """The same of one parent."""
        return min(self.limits.subagents.max_concurrent, self.children)

    @property
    def allows_children(self) -> bool:
        """False where a limit of 0 refuses every child."""
        return min(self.children_each, self.limits.subagents.max_depth) > 0


class Settings(msgspec.Struct, frozen=True):
    """What one client is to be told."""

    values: dict[str, Any] = {}
    """What its file is to say; all else in it stays. Empty for a client that is told by its environment."""
    shell: tuple[str, ...] = ()
    """Lines for a shell: variables first, then how it is started."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader."""


class Client(msgspec.Struct, frozen=True):
    """A coding agent and where it keeps its settings."""

    title: str
    build: Callable[[Given], Settings]
    format: Format | None = None
    folder: str = ""
    """Of its file, below the home."""
    file: str = ""
    variable: str = ""
    """Environment variable that names another folder."""
    below: str = ""
    """Added to the folder that the variable names."""

    def find_file(self, home: Path, environ: Mapping[str, str]) -> Path | None:
        """Where its settings are on this machine, there or not; None for one without a file."""
        if self.format is None:
            return None
        named = environ.get(self.variable, "") if self.variable else ""
        return (Path(named) / self.below if named else home / self.folder) / self.file


def build_given(policy: Policy, base_url: str, model: str, context_tokens: int | None) -> Given:
    """A server under this policy."""
    server = policy.server
    return Given(
        base_url=base_url,
        model=model,
        context_tokens=context_tokens or policy.policy.max_context_tokens or None,
        limits=policy.policy,
        asks_key=bool(server.api_key or server.api_keys_env or server.keys),
    )
