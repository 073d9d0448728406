"""How a checkpoint marks thoughts and calls in its text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from server.text.tools import ToolForm

CallParser = Callable[[str, Sequence[Mapping[str, Any]]], Any]
"""mlx-lm's parser for a model family: the text between the call markers, and the definitions of the tools, to
`{"name", "arguments"}` or a list of them. Raises all kinds of errors for what it cannot read."""


class Markers(msgspec.Struct, frozen=True):
    """What stands before and behind something."""

    start: str
    end: str
    """Empty where the family writes none: then it goes on to the end of the answer."""


class Markup(msgspec.Struct, frozen=True):
    """The markers of one checkpoint; None for what it does not have."""

    think: Markers | None = None
    call: Markers | None = None
    tool_form: ToolForm | None = None
    """How a call is written between its markers; None exactly when `call` is."""
    parse_call: CallParser | None = None
    """None exactly when `call` is."""


NO_MARKUP = Markup()
"""Of a checkpoint whose answers are text and nothing else."""
