"""Every route of the API, as a table: what it takes and what it gives. The OpenAPI document is written from it."""

from __future__ import annotations

from server.api.chat.wire import EXPECTED as CHAT_EXPECTED
from server.api.chat.wire import ChatBody
from server.api.completions.wire import EXPECTED as COMPLETION_EXPECTED
from server.api.completions.wire import CompletionBody
from server.api.messages.wire import EXPECTED as MESSAGES_EXPECTED
from server.api.messages.wire import MessagesBody
from server.api.operation import Operation, build_object
from server.api.operator.operations import OPERATOR_OPERATIONS
from server.api.operator.what_if import EXPECTED as WHAT_IF_EXPECTED
from server.api.operator.what_if import WhatIfBody
from server.api.responses.wire import EXPECTED as RESPONSES_EXPECTED
from server.api.responses.wire import ResponsesBody
from server.api.tokens import DETOKENIZE_EXPECTED, TOKENIZE_EXPECTED, DetokenizeBody, TokenizeBody

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="An answer to a conversation.",
        answer="The completion, or a stream of its chunks.",
        answer_schema=build_object("id", "object", "created", "model", "choices", "usage"),
        body=ChatBody,
        expected=CHAT_EXPECTED,
        streams=True,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        name="createCompletion",
        summary="A text gone on from, without a chat template.",
        answer="The completion, or a stream of its chunks.",
        answer_schema=build_object("id", "object", "created", "model", "choices", "usage"),
        body=CompletionBody,
        expected=COMPLETION_EXPECTED,
        streams=True,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        name="createResponse",
        summary="An answer to items, in the Responses dialect.",
        answer="The response, or a stream of its events.",
        answer_schema=build_object("id", "object", "created_at", "model", "output", "status"),
        body=ResponsesBody,
        expected=RESPONSES_EXPECTED,
        streams=True,
    ),
    Operation(
        method="POST",
        path="/v1/responses/input_tokens",
        name="countResponseTokens",
        summary="How many tokens such a request's prompt has.",
        answer="The count.",
        answer_schema=build_object("object", "input_tokens"),
        body=ResponsesBody,
        expected=RESPONSES_EXPECTED,
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}",
        name="showResponse",
        summary="A response that is kept, or in flight.",
        answer="The response.",
        answer_schema=build_object("id", "object", "output", "status"),
        parameters=("response_id",),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{response_id}",
        name="deleteResponse",
        summary="Forgets a response.",
        answer="That it is gone.",
        answer_schema=build_object("id", "deleted"),
        parameters=("response_id",),
    ),
    Operation(
        method="POST",
        path="/v1/responses/{response_id}/cancel",
        name="cancelResponse",
        summary="Ends a response that is in flight.",
        answer="The response.",
        answer_schema=build_object("id", "object", "status"),
        parameters=("response_id",),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}/input_items",
        name="listResponseInput",
        summary="What was sent as a response's input.",
        answer="A page of items.",
        answer_schema=build_object("object", "data", "has_more"),
        parameters=("response_id",),
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        name="createMessage",
        summary="An answer to a conversation, in Anthropic's dialect.",
        answer="The message, or a stream of its events.",
        answer_schema=build_object("id", "type", "role", "model", "content", "stop_reason", "usage"),
        body=MessagesBody,
        expected=MESSAGES_EXPECTED,
        streams=True,
        error="MessagesError",
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        name="countMessageTokens",
        summary="How many tokens a conversation has.",
        answer="The count.",
        answer_schema=build_object("input_tokens"),
        body=MessagesBody,
        expected=MESSAGES_EXPECTED,
        error="MessagesError",
    ),
    Operation(
        method="POST",
        path="/tokenize",
        name="tokenize",
        summary="The token ids of a text or a conversation.",
        answer="Ids, their number and the context limit.",
        answer_schema=build_object("count", "max_model_len", "tokens"),
        body=TokenizeBody,
        expected=TOKENIZE_EXPECTED,
    ),
    Operation(
        method="POST",
        path="/detokenize",
        name="detokenize",
        summary="The text of token ids.",
        answer="The text.",
        answer_schema=build_object("prompt"),
        body=DetokenizeBody,
        expected=DETOKENIZE_EXPECTED,
    ),
    Operation(
        method="POST",
        path="/v1/requests/{request_id}/cancel",
        name="cancelRequest",
        summary="Ends a request that is in flight.",
        answer="What was ended, and in which phase.",
        parameters=("request_id",),
    ),
    Operation(
        method="GET",
        path="/v1/models",
        name="listModels",
        summary="What is served, and its context limit.",
        answer="The list; with the header `anthropic-version` in Anthropic's form.",
        answer_schema={"anyOf": [build_object("object", "data"), build_object("data", "has_more")]},
    ),
    Operation(
        method="GET",
        path="/v1/models/{model_id}",
        name="retrieveModel",
        summary="The served model by one of its names.",
        answer="The model; with the header `anthropic-version` in Anthropic's form.",
        answer_schema={
            "anyOf": [
                build_object("id", "object", "created", "owned_by", "context_length", "max_output_tokens"),
                build_object("id", "type", "display_name", "created_at", "max_input_tokens", "max_tokens"),
            ]
        },
        parameters=("model_id",),
    ),
    Operation(
        method="GET",
        path="/health",
        name="showHealth",
        summary="Whether the process can work at all.",
        answer="It can.",
        error="Unavailable",
        answer_schema=build_object("status", "state"),
    ),
    Operation(
        method="GET",
        path="/ready",
        name="showReadiness",
        summary="Whether a completion would be taken now.",
        answer="It would.",
        error="Unavailable",
        answer_schema=build_object("status", "state"),
    ),
    Operation(
        method="GET",
        path="/metrics",
        name="showMetrics",
        summary="Figures of the running engine, for Prometheus.",
        answer="Text 0.0.4, or OpenMetrics when it is asked for.",
        answer_schema={"type": "string"},
        content_type="text/plain",
    ),
    *OPERATOR_OPERATIONS,
    Operation(
        method="POST",
        path="/homebase/whatif",
        name="forecastPolicy",
        summary="What other limits would mean: rates, waits, memory, and who would have got in.",
        answer="The forecast.",
        answer_schema=build_object("decode_tps", "basis", "ttft_s", "memory", "replay"),
        body=WhatIfBody,
        expected=WHAT_IF_EXPECTED,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        name="showOpenapi",
        summary="This document.",
        answer="OpenAPI 3.1.",
        answer_schema=build_object("openapi", "info", "paths"),
    ),
)
"""In the order in which docs/api.md tells them."""
