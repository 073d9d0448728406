"""pi: models.json. Pure."""

from __future__ import annotations

from typing import Any

from console.client_settings.shape import KEY_VARIABLE, NO_KEY, Client, Given, Settings


def build(given: Given) -> Settings:
    """A provider over chat completions; which model is the default stays as it is."""
    model: dict[str, Any] = {"id": given.model}
    if given.context_tokens is not None:
        model |= {"contextWindow": given.context_tokens, "maxTokens": given.output_tokens}
    return Settings(
        values={
            "providers": {
                "homebase": {
                    "baseUrl": given.base_url,
                    "api": "openai-completions",
                    "apiKey": KEY_VARIABLE if given.asks_key else NO_KEY,
                    "models": [model],
                }
            }
        },
        shell=(f'pi -p --provider homebase --model {given.model} "Say what hello.py prints."',),
        notes=(
            *((f"It takes its key from ${KEY_VARIABLE}, by that name; not run here.",) if given.asks_key else ()),
            "It names no session in its requests.",
        ),
    )


CLIENT = Client("pi", build, "json", ".pi/agent", "models.json")
