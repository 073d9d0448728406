"""What is asked, as the checkpoint's text side takes it: a prompt, dice, and a reader of what comes back."""

from __future__ import annotations

from typing import Any

import msgspec

from server.api.generation.asked import Asked, ChatPrompt
from server.engine.guide import Guide
from server.engine.request import Sampling
from server.errors import InvalidRequest, UnsupportedParameter
from server.text.answer import AnswerReader
from server.text.call_grammar import build_call_grammar
from server.text.grammar import Grammar, build_schema_grammar
from server.text.guide import Thought
from server.text.markup import NO_MARKUP
from server.text.tokenizer import EncodedPrompt, TextCodec
from server.text.tools import Tool

NEVER = -100.0
"""Added to the score of what must not be drawn: as far as OpenAI's `logit_bias` goes."""


def encode_prompt(
    asked: Asked, codec: TextCodec, limit_tokens: int | None = None, *, limit_chars: int | None = None
) -> EncodedPrompt:
    """The prompt's token ids. Raises InvalidRequest and ContextLengthExceeded; takes long for a long one."""
    prompt = asked.prompt
    if isinstance(prompt, ChatPrompt):
        return codec.encode_chat(
            prompt.turns,
            limit_tokens,
            tools=_choose_tools(asked, codec),
            template_kwargs=_build_switches(prompt, codec),
            limit_chars=limit_chars,
        )
    if prompt.token_ids is None:
        return EncodedPrompt(codec.encode_text(prompt.text, limit_tokens, limit_chars=limit_chars))
    _check_ids(prompt.token_ids, codec.vocab_size)
    return EncodedPrompt(prompt.token_ids)


def build_guide(asked: Asked, codec: TextCodec, encoded: EncodedPrompt) -> Guide | None:
    """What holds the answer to its form and its thought to its budget; None when anything goes. Raises InvalidRequest.

    An answer that owes a form begins no thought where its prompt has closed it: a model that was told not to think
    could choose one before its call, and never come to the call. Takes what compiling a grammar takes: milliseconds,
    and up to a second for the worst.
    """
    if not isinstance(asked.prompt, ChatPrompt):
        return None
    thought, grammar = None, _build_grammar(asked, asked.prompt, codec)
    if codec.markup.think is not None and codec.thought_end_ids:
        begin_id = codec.find_marker(codec.markup.think.start)
        if grammar is not None and encoded.closes_thought:
            begin_id = None
        budget = asked.prompt.thinking.budget_tokens
        thought = Thought(codec.thought_end_ids, budget, is_open=encoded.opens_thought, begin_id=begin_id)
    return codec.guides.build(grammar, thought)


def _build_grammar(asked: Asked, prompt: ChatPrompt, codec: TextCodec) -> Grammar | None:
    """Calls when they must come; JSON when the text must be it; one of both where tools may be called beside it."""
    rule, schema = asked.tool_rule, _find_schema(asked)
    must_call = rule.choice == "required"
    may_call = bool(prompt.tools) and rule.choice == "auto"
    if must_call or (may_call and schema is not None):
        form, markers = codec.markup.tool_form, codec.call_markers
        if form is None or markers is None:
            raise UnsupportedParameter(
                "The served model has no form for tool calls, so none can be asked for.", param="tool_choice"
            )
        return build_call_grammar(
            prompt.tools,
            form,
            markers,
            "tools" if must_call else asked.format.param,
            name=rule.name,
            parallel=rule.parallel,
            answer=None if must_call else schema,
        )
    return None if schema is None else build_schema_grammar(schema, asked.format.param)


def _find_schema(asked: Asked) -> Any:
    """What the answer's JSON must be; None when it need not be JSON."""
    match asked.format.kind:
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case _:
            return asked.format.schema


def build_reader(asked: Asked, codec: TextCodec, *, opens_thought: bool) -> AnswerReader:
    """What tells the parts of the answer apart; a text that is gone on from without a template has but one."""
    if not isinstance(asked.prompt, ChatPrompt):
        return AnswerReader(NO_MARKUP)
    return codec.build_answer_reader(_choose_tools(asked, codec), opens_thought=opens_thought)


def build_sampling(asked: Asked, codec: TextCodec) -> Sampling:
    """How tokens are drawn. Raises InvalidRequest.

    When tools are shown that must not be called, the token that calls begin with is never drawn.
    """
    sampling = asked.sampling.build_sampling(codec.vocab_size)
    begin_id = _find_call_begin(codec)
    if asked.tool_rule.choice != "none" or not _choose_tools(asked, codec) or begin_id is None:
        return sampling
    others = (pair for pair in sampling.logit_bias if pair[0] != begin_id)
    return msgspec.structs.replace(sampling, logit_bias=(*others, (begin_id, NEVER)))


def _choose_tools(asked: Asked, codec: TextCodec) -> tuple[Tool, ...]:
    """The tools that the model is shown. Those that it must not call are shown too, or the whole prompt would be new.

    Where it cannot be kept from calling them they are not.
    """
    if not isinstance(asked.prompt, ChatPrompt):
        return ()
    hides = asked.tool_rule.choice == "none" and _find_call_begin(codec) is None
    return () if hides else asked.prompt.tools


def _find_call_begin(codec: TextCodec) -> int | None:
    markers = codec.call_markers
    return None if markers is None else markers.begin_id


def _build_switches(prompt: ChatPrompt, codec: TextCodec) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if prompt.thinking.effort is not None:
        switches |= codec.plan_thinking(prompt.thinking.effort)
    if prompt.thinking.is_on is not None:
        switches["enable_thinking"] = prompt.thinking.is_on
    return {**switches, **prompt.template_kwargs}


def _check_ids(token_ids: tuple[int, ...], vocab_size: int) -> None:
    wrong = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        shown = f"{wrong:,}" if abs(wrong) < 2**63 else "a huge number"
        raise InvalidRequest(
            f"`prompt` holds the token id {shown}; ids go from 0 to {vocab_size - 1:,} here.", param="prompt"
        )
