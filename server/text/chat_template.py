"""Renders a conversation by the checkpoint's own chat template, up to where the assistant's answer begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import jinja2

from server.errors import InvalidRequest
from server.text.markup import Markers
from server.text.template_limit import limit_template
from server.text.tools import Tool

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

RENDER_S = 10.0
"""Processor time that a chat template may take: twenty times what 8,000 messages took. A few nested loops can take
years, and each held one of the two text threads for good."""

RESERVED_NAMES = frozenset({"self", "messages", "conversations", "return_dict", "raise_exception", "strftime_now"})
"""What a client cannot set in a template, beside the parameters of transformers' own `apply_chat_template`, which are
read from it, and the names of special tokens."""

THINKING_SWITCH = "enable_thinking"

_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a chat template can raise: its own complaint, or a fault in what it does with the messages."""

_PROBE_MESSAGE = {"role": "user", "content": "a"}
_PROBE_NAME = "homebase_probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "Answers nothing.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "Anything."}}},
    },
}


class ChatTemplate:
    """The chat template of one checkpoint. Its methods may be called from any thread."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer = tokenizer
        self._reserved = RESERVED_NAMES | set(_list_parameters(tokenizer)) | set(tokenizer.special_tokens_map)
        self.source = _read_source(tokenizer.chat_template)
        """Its text; empty where there is none, or where mlx-lm renders by a program of its own."""
        self._is_program = "chat_template_type" in tokenizer.init_kwargs

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt. Raises InvalidRequest for messages, tools or names that the template does not take.

        Nothing is said about thinking unless `kwargs` do: then it is as the template has it by itself.
        """
        if not self._tokenizer.has_chat_template:
            raise InvalidRequest("The served model has no chat template, so it cannot take chat messages.")
        self._refuse_reserved(kwargs or {})
        if tools and not self.renders_tools:
            raise InvalidRequest(
                "The served model's chat template does not show tools to the model; leave `tools` out.", param="tools"
            )
        try:
            return self._apply(messages, [tool.definition for tool in tools], kwargs or {})
        except _FAULTS as fault:
            reason = " ".join(str(fault).split())[:300] or type(fault).__name__
            raise InvalidRequest(
                f"The model's chat template does not take these messages: {reason}", param="messages"
            ) from fault

    @cached_property
    def renders_tools(self) -> bool:
        """True when the name of a tool stands in the prompt. Of a template that takes no trial messages it is believed.

        Tried once, with a name that no message has: a real one can stand in a prompt because somebody wrote it.
        """
        try:
            return _PROBE_NAME in self._apply([_PROBE_MESSAGE], [_PROBE_TOOL], {})
        except (*_FAULTS, InvalidRequest):
            return True

    def render_opening(self) -> str:
        """What stands in front of every answer of the assistant; empty when that cannot be told."""
        if not self._tokenizer.has_chat_template:
            return ""
        try:
            closed, opened = (self._apply([_PROBE_MESSAGE], [], {}, opens_answer=opens) for opens in (False, True))
        except (*_FAULTS, InvalidRequest):
            return ""
        return opened.removeprefix(closed) if opened.startswith(closed) else ""

    def _refuse_reserved(self, kwargs: Mapping[str, Any]) -> None:
        taken = sorted(self._reserved & kwargs.keys())
        if taken:
            raise InvalidRequest(
                f"`chat_template_kwargs` has {taken[0]!r}, which this server sets itself; leave it out.",
                param=f"chat_template_kwargs.{taken[0]}",
            )

    def _apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        *,
        opens_answer: bool = True,
    ) -> str:
        with limit_template(RENDER_S, _build_loop_error):
            rendered = self._find_renderer(kwargs)(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=opens_answer,
                **kwargs,
            )
        return cast("str", rendered)

    def _find_renderer(self, kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """mlx-lm's wrapper, or the tokenizer that it wraps where nobody says anything about thinking.

        The wrapper then switches thinking on for every model that can think; a template has a default of its own.
        What mlx-lm renders by a program is left to the wrapper, which alone knows that program.
        """
        if self._is_program or THINKING_SWITCH in kwargs:
            return self._tokenizer.apply_chat_template
        inner: Any = self._tokenizer._tokenizer  # pyright: ignore[reportPrivateUsage]  # no public name leads to it
        return inner.apply_chat_template


def opens_thought(prompt: str, think: Markers | None, turn: str) -> bool:
    """True when the prompt ends inside a thought: in its last turn one begins that does not end.

    Earlier turns do not count: a message may speak of the marker. Where it is not known how a turn begins, only a
    marker at the very end does.
    """
    if think is None:
        return False
    tail = prompt[prompt.rfind(turn) :] if turn and turn in prompt else prompt.rstrip()[-len(think.start) :]
    return tail.rfind(think.start) > tail.rfind(think.end)


def closes_thought(prompt: str, think: Markers | None) -> bool:
    """True when the prompt ends with a thought that is over, by which templates say that there shall be none."""
    return think is not None and prompt.rstrip().endswith(think.end)


def _build_loop_error() -> InvalidRequest:
    return InvalidRequest(
        f"The model's chat template made no prompt of these messages in {RENDER_S:g} s of work; it may loop. Send "
        "fewer messages, or have the operator look at the template.",
        param="messages",
    )


def _list_parameters(tokenizer: TokenizerWrapper) -> list[str]:
    from transformers import PreTrainedTokenizerBase

    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]


def _read_source(template: str | dict[str, str] | None) -> str:
    """The text of a template, or of all of them where a checkpoint has one for tools beside another."""
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""
