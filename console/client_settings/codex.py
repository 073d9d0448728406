"""Codex: config.toml. Pure."""

from __future__ import annotations

from typing import Any

from console.client_settings.shape import KEY_VARIABLE, Client, Given, Settings


def build(given: Given) -> Settings:
    """A provider over the Responses dialect, and it as the default."""
    values: dict[str, Any] = {"model": given.model, "model_provider": "homebase"}
    if given.context_tokens is not None:
        values["model_context_window"] = given.context_tokens
    provider = {"name": "homebase-console", "base_url": given.base_url, "wire_api": "responses"}
    if given.asks_key:
        provider["env_key"] = KEY_VARIABLE
    return Settings(
        values=values | {"model_providers": {"homebase": provider}},
        shell=('codex exec "Say what hello.py prints."',),
        notes=("This makes homebase its default. It says that it has no metadata for the model, which is harmless.",),
    )


CLIENT = Client("Codex", build, "toml", ".codex", "config.toml", "CODEX_HOME")
