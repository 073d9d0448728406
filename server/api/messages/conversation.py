"""Brings a conversation from the Messages dialect into the one form that every chat template takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from server.api.generation.turns import build_call, put_system_first
from server.api.messages.contents import JOINT, build_text_only, read_result, read_text
from server.api.messages.thoughts import read_signature
from server.api.messages.wire import Block, Message
from server.errors import InvalidRequest, UnsupportedParameter

log = logging.getLogger(__name__)

BILLING_LINE = "x-anthropic-billing-header:"
"""How a line begins that Claude Code puts first into its system prompt, for Anthropic's accounting. It changes from
request to request, so that no prompt would ever begin like the one before."""

TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
"""In system messages. All tools of a request are offered from its beginning."""

Turn = dict[str, Any]


def build_turns(
    system: str | list[Block] | None, messages: Sequence[Message], *, must_be_answered: bool = True
) -> list[Turn]:
    """The conversation for a chat template. Raises InvalidRequest for what no template can take.

    Neighbouring messages of one role become one turn, as the dialect has it, and each tool's result a turn of its
    own. System messages before all others join the system prompt; a later one stays where it is, as a reminder in the
    user's turn: at the front it would change how the whole prompt begins. With `must_be_answered` the last turn must
    not be the assistant's.
    """
    system_texts = list(_read_system(system, "system"))
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        match message.role:
            case "user":
                _add_user(turns, message.content, where)
            case "assistant":
                _add_assistant(turns, message.content, where)
            case "system" if turns:
                _remind(turns, JOINT.join(_read_system(message.content, where)))
            case "system":
                system_texts += _read_system(message.content, where)
    if must_be_answered and turns and turns[-1]["role"] == "assistant":
        raise UnsupportedParameter(
            "`messages` ends with an assistant message, and this server does not support assistant message prefill: "
            "the conversation must end with a user message.",
            param="messages",
        )
    for turn in turns:
        _join_texts(turn)
    return put_system_first(system_texts, turns)


def _read_system(content: str | list[Block] | None, where: str) -> Iterator[str]:
    """The texts of a system prompt, without the line for Anthropic's accounting."""
    for index, block in enumerate(_list_blocks(content)):
        if block.type in TOOL_CHANGES:
            log.debug("a change of the tools in a conversation has no effect: %s", block.type)
            continue
        text = read_text(block, f"{where}[{index}]")
        if text is None:
            raise build_text_only(block, f"{where}[{index}]")
        if text.startswith(BILLING_LINE):
            _, _, text = text.partition("\n")
        if text:
            yield text


def _add_user(turns: list[Turn], content: str | list[Block], where: str) -> None:
    blocks = _list_blocks(content)
    for index, block in enumerate(blocks):
        if block.type == "tool_result":
            turns.append(_build_result(block, f"{where}[{index}]"))
        elif not _is_of_anthropic(block):
            text = read_text(block, f"{where}[{index}]")
            if text is None:
                raise build_text_only(block, f"{where}[{index}]")
            _say(turns, text)
    if not blocks:
        _say(turns, "")


def _say(turns: list[Turn], text: str) -> None:
    """Add to what the user says."""
    if not turns or turns[-1]["role"] != "user":
        turns.append({"role": "user", "content": []})
    if text:
        turns[-1]["content"].append(text)


def _join_texts(turn: Turn) -> None:
    """Make one text of a turn's: at the end, as 35,000 of them, each put to those before, stopped the server."""
    match turn["role"]:
        case "user":
            turn["content"] = JOINT.join(turn["content"])
        case "assistant":
            for field in ("content", "reasoning_content"):
                if field in turn:
                    turn[field] = "".join(turn[field])
        case _:
            pass  # a tool's result is one text


def _remind(turns: list[Turn], text: str) -> None:
    """Add what the system says in the midst of a conversation, in the form in which Claude Code writes reminders."""
    if text:
        _say(turns, f"<system-reminder>\n{text}\n</system-reminder>")


def _build_result(block: Block, where: str) -> Turn:
    if not block.tool_use_id:
        raise InvalidRequest(
            f"`{where}.tool_use_id` is missing; a tool_result must say which call it answers.",
            param=f"{where}.tool_use_id",
        )
    text = read_result(block.content, f"{where}.content")
    # Templates have no place for the flag; agents mostly say it in the text as well.
    is_told = not block.is_error or "error" in text[:40].lower()
    return {"role": "tool", "content": text if is_told else f"Error: {text}", "tool_call_id": block.tool_use_id}


def _add_assistant(turns: list[Turn], content: str | list[Block], where: str) -> None:
    """Add what the assistant said, thought and called.

    Blocks of kinds that are unknown here are left out: what another server's model did with its own tools, for
    example. They come back with every turn, so refusing them would end the conversation.
    """
    is_going_on = bool(turns) and turns[-1]["role"] == "assistant"
    turn: Turn = turns[-1] if is_going_on else {"role": "assistant", "content": []}
    for index, block in enumerate(_list_blocks(content)):
        match block.type:
            case "thinking":
                if thought := block.thinking or read_signature(block.signature or ""):
                    turn.setdefault("reasoning_content", []).append(thought)
            case "tool_use":
                turn.setdefault("tool_calls", []).append(_build_use(block, f"{where}[{index}]"))
            case _:
                if text := read_text(block, f"{where}[{index}]"):
                    turn["content"].append(text)
    if not is_going_on and (turn["content"] or len(turn) > 2):
        turns.append(turn)


def _build_use(block: Block, where: str) -> dict[str, Any]:
    if not block.name:
        raise InvalidRequest(f"`{where}.name` is missing; it must be a string.", param=f"{where}.name")
    given = block.input
    arguments = given if isinstance(given, dict | str | None) else msgspec.json.encode(given).decode()
    return build_call(block.id or "", block.name, arguments)


def _is_of_anthropic(block: Block) -> bool:
    """True for what tools that Anthropic's servers ran have left in a conversation."""
    return block.type.endswith("_tool_result")


def _list_blocks(content: str | list[Block] | None) -> list[Block]:
    """Content as blocks; a string is one block of text."""
    if content is None or content == "":
        return []
    return [Block("text", text=content)] if isinstance(content, str) else content
