"""Finds out how a checkpoint marks thoughts and calls, from what mlx-lm knows of its tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from server.text.markup import Markers, Markup
from server.text.tools import ToolForm

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FORMS: dict[str, ToolForm] = {"qwen3_coder": "qwen_xml", "json_tools": "json"}
"""By the name of mlx-lm's parser; all others are read by that parser alone."""


def find_markup(tokenizer: TokenizerWrapper) -> Markup:
    """The markup of a checkpoint."""
    think = _build_markers(tokenizer.think_start, tokenizer.think_end)
    call = _build_markers(tokenizer.tool_call_start, tokenizer.tool_call_end)
    if call is None:
        return Markup(think)
    form = _FORMS.get(str(tokenizer.init_kwargs.get("tool_parser_type")), "other")
    return Markup(think, call, form, tokenizer.tool_parser)


def find_shown_ids(tokenizer: TokenizerWrapper, markup: Markup) -> frozenset[int]:
    """Tokens of the markup, which a detokenizer must show although the vocabulary may call them special.

    In forms that only mlx-lm's parsers know, other special tokens may be part of a call (Gemma's quotes, the parts of
    Kimi's calls). There every token is shown but those with a role of their own: begin, end, padding and such.
    """
    shown = {number for marker in _list_markers(markup) for number in _encode(tokenizer, marker)}
    if markup.tool_form == "other":
        roles = {tokenizer.convert_tokens_to_ids(token) for token in _list_role_tokens(tokenizer)}
        shown |= set(tokenizer.added_tokens_decoder) - roles
    return frozenset(shown)


def _build_markers(start: str | None, end: str | None) -> Markers | None:
    return Markers(start, end or "") if start else None


def _list_markers(markup: Markup) -> Iterator[str]:
    for markers in (markup.think, markup.call):
        if markers is not None:
            yield from (markers.start, markers.end)


def _list_role_tokens(tokenizer: TokenizerWrapper) -> Iterator[str]:
    """Tokens that the tokenizer's configuration names for a role, each under a name of its own."""
    return (token for token in tokenizer.special_tokens_map.values() if isinstance(token, str))


def _encode(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False) if text else []
