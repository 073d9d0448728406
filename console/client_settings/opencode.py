"""OpenCode: opencode.json. Pure."""

from __future__ import annotations

from console.client_settings.shape import KEY_VARIABLE, NO_KEY, Client, Given, Settings


def build(given: Given) -> Settings:
    """A provider over chat completions, and its model as the default."""
    key = f"{{env:{KEY_VARIABLE}}}" if given.asks_key else NO_KEY
    # A limit has both numbers or is left out: its schema wants both.
    limit = {} if given.context_tokens is None else {"limit": _build_limit(given.context_tokens, given.output_tokens)}
    return Settings(
        values={
            "$schema": "https://opencode.ai/config.json",
            "model": f"homebase/{given.model}",
            "provider": {
                "homebase": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": given.base_url, "apiKey": key},
                    "models": {given.model: limit},
                }
            },
        },
        shell=('opencode run "Say what hello.py prints."',),
        notes=("This makes homebase its default. It asks for a title beside its work, which takes a place too.",),
    )


def _build_limit(context_tokens: int, output_tokens: int) -> dict[str, int]:
    return {"context": context_tokens, "output": output_tokens}


CLIENT = Client(
    "OpenCode", build, "json", ".config/opencode", "opencode.json", variable="XDG_CONFIG_HOME", below="opencode"
)
