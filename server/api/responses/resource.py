"""The response object: what was asked, repeated, and what came of it so far."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from server.api.generation.reply import Usage
from server.api.responses.tools import Toolbox
from server.api.responses.wire import ResponsesBody
from server.errors import HomebaseError, StreamStopped

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

STOPPED_CODE = "invalid_prompt"
"""The dialect's code for what was stopped on purpose. Its codes are a closed list; this one of them is the one after
which agents do not try again by themselves, which would undo the stop."""


class Resource:
    """Builds one response's object, which is the same in events, whole and kept."""

    def __init__(self, response_id: str, model: str, created_s: int, body: ResponsesBody, toolbox: Toolbox) -> None:
        self.id = response_id
        self._created_s = created_s
        # Instructions and tools are long and stand in every object: they are written once.
        self._echo = {
            name: msgspec.Raw(msgspec.json.encode(value)) for name, value in _build_echo(model, body, toolbox).items()
        }

    def build(
        self,
        status: ResponseStatus,
        output: list[dict[str, Any]],
        *,
        usage: Usage | None = None,
        error: HomebaseError | None = None,
        completed_s: int | None = None,
    ) -> msgspec.Raw:
        """The object, encoded."""
        fields = {
            "id": self.id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": completed_s,
            "status": status,
            "error": None if error is None else _build_error(error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": None if usage is None else _build_usage(usage),
            **self._echo,
        }
        return msgspec.Raw(msgspec.json.encode(fields))


def _build_echo(model: str, body: ResponsesBody, toolbox: Toolbox) -> dict[str, Any]:
    reasoning, text = body.reasoning, body.text
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_kept,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": _build_format(body),
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": toolbox.definitions,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        # Whatever was asked: a prompt that is too long is refused, and never cut.
        "truncation": "disabled",
        "user": body.user,
    }


def _build_format(body: ResponsesBody) -> dict[str, Any]:
    form = body.text.format if body.text else None
    if form is None or form.type != "json_schema":
        return {"type": form.type if form else "text"}
    return {
        "type": "json_schema",
        "name": form.name or "",
        "description": form.description,
        "schema": form.schema,
        "strict": form.strict,
    }


def _build_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        # Nothing is ever charged for writing to a cache.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thought_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _build_error(error: HomebaseError) -> dict[str, Any]:
    """`code` is the dialect's coarse class, `type` our own code, the fine one."""
    code = STOPPED_CODE if isinstance(error, StreamStopped) else "server_error"
    return {"code": code, "message": error.message, "type": error.code}
