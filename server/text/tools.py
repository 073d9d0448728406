"""The functions that a client offers to the model, as the text side knows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

ToolForm = Literal["qwen_xml", "json", "other"]
"""How a model's family writes a call between its call markers: `<function=NAME><parameter=KEY>` elements, one JSON
object with `name` and `arguments`, or some other form that only mlx-lm's parser for it knows."""


class Tool(msgspec.Struct, frozen=True):
    """One function that the model may call."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments, an object's; empty when none was given."""
    definition: Mapping[str, Any]
    """As chat templates take it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
