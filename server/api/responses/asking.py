"""From a Responses request and the conversation that it goes on from, to what is asked."""

from __future__ import annotations

from collections.abc import Sequence

from server.api.generation.asked import Asked, Caller, ChatPrompt, Format
from server.api.generation.sampling import list_stops
from server.api.responses.choice import apply_choice
from server.api.responses.items import Item, build_turns, find_brought_tools
from server.api.responses.tools import Given, Toolbox, read_toolbox
from server.api.responses.wire import EXPECTED, ResponsesBody
from server.errors import InvalidRequest


def build_asked(caller: Caller, body_bytes: int, body: ResponsesBody, items: Sequence[Item]) -> tuple[Asked, Toolbox]:
    """What is asked, and its tools. `items` is the whole conversation. Raises InvalidRequest, UnsupportedParameter."""
    given = (Given(f"tools[{index}]", definition) for index, definition in enumerate(body.tools or ()))
    toolbox = read_toolbox(given, find_brought_tools(items))
    allowed, rule = apply_choice(toolbox, body.tool_choice, body.parallel_tool_calls)
    turns = build_turns(body.instructions, items)
    if not turns:
        raise InvalidRequest("`input` has no text; it must have at least one item with text.", param="input")
    asked = Asked(
        caller=caller,
        body_bytes=body_bytes,
        model=body.model,
        prompt=ChatPrompt(turns, allowed.tools, body.wanted_thinking, body.template_switches),
        prompt_name="input",
        is_streaming=body.is_streaming,
        max_tokens=body.max_output_tokens,
        max_tokens_name="max_output_tokens",
        sampling=body,
        stops=list_stops(body.stop),
        top_logprobs=body.wanted_logprobs,
        tool_rule=rule,
        format=read_format(body),
    )
    return asked, toolbox


def read_format(body: ResponsesBody) -> Format:
    """What the answer's text must be. Raises InvalidRequest."""
    form = body.text.format if body.text else None
    if form is None or form.type != "json_schema":
        return Format(form.type if form else "text")
    param = "text.format.schema"
    if form.schema is None:
        raise InvalidRequest(f"`{param}` is missing; it must be {EXPECTED[param]}.", param=param)
    return Format("json_schema", form.schema, param)
