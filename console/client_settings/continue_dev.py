"""Continue, the editor's extension: config.yaml, to be pasted. Pure."""

from __future__ import annotations

from typing import Any

from console.client_settings.shape import NO_KEY, Client, Given, Settings


def build(given: Given) -> Settings:
    """Chat completions."""
    model: dict[str, Any] = {
        "name": "homebase-console",
        "provider": "openai",
        "model": given.model,
        "apiBase": given.base_url,
        "apiKey": "${{ secrets.HOMEBASE_API_KEY }}" if given.asks_key else NO_KEY,
        "roles": ["chat", "edit", "apply"],
    }
    if given.context_tokens is not None:
        model["defaultCompletionOptions"] = {"contextLength": given.context_tokens, "maxTokens": given.output_tokens}
    return Settings(
        values={"models": [model]},
        notes=("Not run here. Its completion while you type is left to another model: each pause would take a place.",),
    )


CLIENT = Client("Continue", build, "yaml", ".continue", "config.yaml")
