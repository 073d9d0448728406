"""What a chat request may have: which model answers, and how many tokens. Pure."""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from server.errors import ContextLengthExceeded, InvalidRequest, UnknownModel
from server.policy import ClientPolicy
from server.snapshot import ModelView

OWN_CONTEXT = "policy.clients, max_context_tokens"
"""What sets a limit that is a client's own; named without the client."""

MODEL_CHARS = 200
"""A model id that is quoted back is cut to this."""


def check_model(asked: str | None, model: ModelView) -> None:
    """Raise UnknownModel unless `asked` means the served model.

    It does when it is the id, the id's last part, or the name of the checkpoint's folder; and when nothing was asked,
    because there is only one. Nothing else is guessed and no name is looked up anywhere.
    """
    if model.state == "none":
        raise UnknownModel(cut_name(asked or ""), ())
    if asked and not is_served(asked, model):
        raise UnknownModel(cut_name(asked), (model.id,))


def is_served(asked: str, model: ModelView) -> bool:
    """Whether a name means the model that is served here."""
    if model.state == "none":
        return False
    return asked in {model.id, model.id.rpartition("/")[2], PurePath(model.path).name}


def cut_name(model: str) -> str:
    """A model's name, short enough to be quoted back."""
    return model if len(model) <= MODEL_CHARS else f"{model[:MODEL_CHARS]}…"


def narrow_context(model: ModelView, own: ClientPolicy | None) -> ModelView:
    """The model as it is served to a client for which the operator set a shorter context."""
    most = own.max_context_tokens if own is not None else None
    if not most or most >= model.effective_context_limit_tokens:
        return model
    return msgspec.structs.replace(model, effective_context_limit_tokens=most, context_limit_set_by=OWN_CONTEXT)


def exceed_context(prompt_tokens: int, model: ModelView, *, at_least: bool = False) -> ContextLengthExceeded:
    """The error for a prompt that is too long, with what sets the limit when that is not the model itself."""
    because = {
        "engine.memory_budget_gib": "The memory budget (engine.memory_budget_gib) sets this limit",
        "policy.max_context_tokens": "The operator (policy.max_context_tokens) sets this limit",
        OWN_CONTEXT: f"The operator ({OWN_CONTEXT}) sets this limit for this client",
    }.get(model.context_limit_set_by, "")
    if because:
        because = f"{because}; the model itself has {model.context_limit_tokens:,}."
    return ContextLengthExceeded(
        prompt_tokens, model.effective_context_limit_tokens, at_least=at_least, because=because
    )


def plan_max_tokens(prompt_tokens: int, asked: int | None, asked_name: str, model: ModelView) -> int:
    """How many tokens may be generated: what was asked for, or less where the context limit ends it.

    Agents ask for a fixed large output whatever the prompt is, so an output that does not fit is shortened to the
    room that there is (the answer then ends with finish_reason `length`). Raises ContextLengthExceeded when the
    prompt leaves no room at all, and InvalidRequest for an output that no prompt would leave room for.
    """
    limit = model.effective_context_limit_tokens
    if prompt_tokens >= limit:
        raise exceed_context(prompt_tokens, model)
    if asked is not None and asked > max(model.context_limit_tokens, limit):
        shown = f"{asked:,}" if asked < 2**63 else "a huge number"
        raise InvalidRequest(
            f"`{asked_name}` is {shown}, but the model's whole context has {model.context_limit_tokens:,} tokens "
            f"({limit:,} may be used here); ask for less, or leave it out to use what the prompt leaves.",
            param=asked_name,
        )
    room = limit - prompt_tokens
    return room if asked is None else min(asked, room)
