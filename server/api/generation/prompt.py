"""What is asked, as the checkpoint's text side takes it: a prompt, dice, and a reader of what comes back."""

from __future__ import annotations

from typing import Any

import msgspec

from server.api.generation.asked import Asked, ChatPrompt
from server.engine.request import Sampling
from server.errors import InvalidRequest
from server.text.answer import AnswerReader
from server.text.markup import NO_MARKUP
from server.text.tokenizer import EncodedPrompt, TextCodec
from server.text.tools import Tool

NEVER = -100.0
"""Added to the score of what must not be drawn: as far as OpenAI's `logit_bias` goes."""


def encode_prompt(asked: Asked, codec: TextCodec, limit_tokens: int | None) -> EncodedPrompt:
    """The prompt's token ids. Raises InvalidRequest and ContextLengthExceeded; takes long for a long one."""
    prompt = asked.prompt
    if isinstance(prompt, ChatPrompt):
        return codec.encode_chat(
            prompt.turns,
            limit_tokens,
            tools=_choose_tools(asked, codec),
            template_kwargs=_build_switches(prompt, codec),
        )
    if prompt.token_ids is None:
        return EncodedPrompt(codec.encode_text(prompt.text, limit_tokens))
    _check_ids(prompt.token_ids, codec.vocab_size)
    return EncodedPrompt(prompt.token_ids)


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
    if asked.tool_rule.choice != "none" or not _choose_tools(asked, codec) or codec.call_start_id is None:
        return sampling
    others = (pair for pair in sampling.logit_bias if pair[0] != codec.call_start_id)
    return msgspec.structs.replace(sampling, logit_bias=(*others, (codec.call_start_id, NEVER)))


def _choose_tools(asked: Asked, codec: TextCodec) -> tuple[Tool, ...]:
    """The tools that the model is shown. Those that it must not call are shown too, or the whole prompt would be new.

    Where it cannot be kept from calling them they are not.
    """
    if not isinstance(asked.prompt, ChatPrompt):
        return ()
    hides = asked.tool_rule.choice == "none" and codec.call_start_id is None
    return () if hides else asked.prompt.tools


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
