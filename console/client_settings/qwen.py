"""Qwen Code: variables in the shell. Pure."""

from __future__ import annotations

from console.client_settings.shape import Client, Given, Settings


def build(given: Given) -> Settings:
    """Chat completions."""
    return Settings(
        shell=(
            f"export OPENAI_BASE_URL={given.base_url} OPENAI_API_KEY={given.shell_key} OPENAI_MODEL={given.model}",
            f"export QWEN_CODE_MAX_OUTPUT_TOKENS={given.output_tokens}",
            'qwen --auth-type openai -p "Say what hello.py prints."',
        ),
        notes=("It names no session in its requests.",),
    )


CLIENT = Client("Qwen Code", build)
