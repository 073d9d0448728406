"""What a request goes on from, and what it adds: previous responses and single items are looked up in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.responses.items import Item
from server.api.responses.listing import list_items
from server.api.responses.store import Kept, ResponseStore, measure_conversation, read_conversation
from server.api.responses.wire import ResponsesBody
from server.errors import InvalidRequest, PreviousResponseNotFound, ResponseNotFound


class Conversation(msgspec.Struct, frozen=True):
    """All that a request is about."""

    previous: Kept | None
    before: Sequence[dict[str, Any]]
    """The items up to the previous response and with it."""
    input: Sequence[dict[str, Any]]
    """The request's own, references replaced by what they refer to."""

    @property
    def kept_bytes(self) -> int:
        """Of what it goes on from."""
        return measure_conversation(self.previous)

    def list_items(self) -> list[Item]:
        """All items, with their places in the request."""
        earlier = [Item("previous_response_id", fields) for fields in self.before]
        return [*earlier, *(Item(f"input[{index}]", fields) for index, fields in enumerate(self.input))]


def open_conversation(store: ResponseStore, owner: str, body: ResponsesBody) -> Conversation:
    """The conversation of a request. Raises PreviousResponseNotFound, and InvalidRequest for a lost reference."""
    previous = _find_previous(store, owner, body.previous_response_id)
    if isinstance(body.input, str):
        given: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": body.input}]
    else:
        given = [_resolve(store, owner, Item(f"input[{index}]", fields)) for index, fields in enumerate(body.input)]
    return Conversation(previous, read_conversation(previous), given)


def _find_previous(store: ResponseStore, owner: str, response_id: str | None) -> Kept | None:
    if response_id is None:
        return None
    try:
        return store.find(owner, response_id)
    except ResponseNotFound:
        raise PreviousResponseNotFound(response_id) from None


def _resolve(store: ResponseStore, owner: str, item: Item) -> dict[str, Any]:
    """The item that a reference means; any other is itself."""
    if item.kind != "item_reference":
        return dict(item.fields)
    item_id = item.fields.get("id")
    found = _find_item(store, owner, item_id) if isinstance(item_id, str) else None
    if found is None:
        raise InvalidRequest(
            f"`{item.where}` refers to the item {show_value(item_id)}, which is not kept here (any more); "
            "send the item itself.",
            param=f"{item.where}.id",
        )
    return found


def _find_item(store: ResponseStore, owner: str, item_id: str) -> dict[str, Any] | None:
    """An item of a kept response's output or input. Its id names the request that it is of."""
    _, _, rest = item_id.partition("_")
    response_id = f"resp_{rest.partition('_')[0]}"
    try:
        kept = store.find(owner, response_id)
    except ResponseNotFound:
        return None
    sources = (kept.read_output, lambda: list_items(response_id, kept.read_items()))
    return next((item for read in sources for item in read() if item.get("id") == item_id), None)
