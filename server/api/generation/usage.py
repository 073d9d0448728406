"""Token counts as the OpenAI dialects write them."""

from __future__ import annotations

from typing import Any

from server.api.generation.reply import Usage


def build_usage(usage: Usage) -> dict[str, Any]:
    """`usage` of the chat and completions dialects; thoughts are counted as a part of the generated tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.thought_tokens},
    }
