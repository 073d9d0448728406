"""aider: variables in the shell. Pure."""

from __future__ import annotations

from console.client_settings.shape import Client, Given, Settings


def build(given: Given) -> Settings:
    """Chat completions, by the prefix that names OpenAI's form."""
    return Settings(
        shell=(
            f"export OPENAI_API_BASE={given.base_url} OPENAI_API_KEY={given.shell_key}",
            f"aider --model openai/{given.model}",
        ),
        notes=("Not run here. It has no subagents.",),
    )


CLIENT = Client("aider", build)
