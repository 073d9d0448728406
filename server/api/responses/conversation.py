"""What a request goes on from, and what it adds: previous responses and single items, as far as they are kept.

Found on the event loop, where the store lives, and read beside it: a conversation may be as long as a body, and a
thousand references to one item of 2 MB, each read by itself, stopped the server for 25 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from server.api.body import LIMIT_BYTES
from server.api.decoding import show_value
from server.api.json_shape import MOST_VALUES, check_shape
from server.api.responses.items import Item
from server.api.responses.listing import list_items
from server.api.responses.store import Kept, ResponseStore, list_turns, measure_conversation, read_conversation
from server.api.responses.wire import ResponsesBody
from server.errors import InvalidRequest, PreviousResponseNotFound, ResponseNotFound


class Conversation(msgspec.Struct, frozen=True):
    """All that a request is about."""

    previous: Kept | None
    before: Sequence[dict[str, Any]]
    """The items up to the previous response and with it."""
    input: Sequence[dict[str, Any]]
    """The request's own, references replaced by what they refer to."""

    def list_items(self) -> list[Item]:
        """All items, with their places in the request."""
        earlier = [Item("previous_response_id", fields) for fields in self.before]
        return [*earlier, *(Item(f"input[{index}]", fields) for index, fields in enumerate(self.input))]


class Sources(msgspec.Struct, frozen=True):
    """The kept responses that a request needs; they never change."""

    previous: Kept | None
    referred: Mapping[str, Kept]
    """By id, those that have the items that are referred to."""

    @property
    def kept_bytes(self) -> int:
        """Of what there is to read."""
        return measure_conversation(self.previous) + sum(_measure(kept) for kept in self.referred.values())


def find_sources(store: ResponseStore, owner: str, body: ResponsesBody) -> Sources:
    """What is to be read for a request; reads nothing yet. Raises PreviousResponseNotFound."""
    previous = _find_previous(store, owner, body.previous_response_id)
    wanted = dict.fromkeys(_find_response_id(item) for _, item in _list_references(body))
    found = {response_id: _find(store, owner, response_id) for response_id in wanted}
    return Sources(previous, {response_id: kept for response_id, kept in found.items() if kept is not None})


def open_conversation(sources: Sources, body: ResponsesBody) -> Conversation:
    """The conversation of a request; on any thread. Raises InvalidRequest for one too long, and a lost reference."""
    before = _read_before(sources.previous)
    if isinstance(body.input, str):
        return Conversation(sources.previous, before, [{"type": "message", "role": "user", "content": body.input}])
    given = [dict(fields) for fields in body.input]
    known: dict[str, _Found] = {}
    room_bytes = LIMIT_BYTES
    for index, item in _list_references(body):
        if (response_id := _find_response_id(item)) not in known:
            known[response_id] = _Found(response_id, sources.referred.get(response_id))
        given[index] = known[response_id].find(item)
        room_bytes -= known[response_id].measure(item)
        if room_bytes < 0:
            raise InvalidRequest(
                f"The items that `input` refers to have more than {LIMIT_BYTES:,} bytes together; refer to fewer.",
                param="input",
            )
    return Conversation(sources.previous, before, given)


class _Found:
    """The items of one response, read once for all that refers to them."""

    def __init__(self, response_id: str, kept: Kept | None) -> None:
        items = [] if kept is None else [*list_items(response_id, kept.read_items()), *kept.read_output()]
        # Of two items by one name the output's counts.
        self._items = {item["id"]: item for item in items if isinstance(item.get("id"), str)}
        self._bytes: dict[str, int] = {}

    def find(self, reference: Item) -> dict[str, Any]:
        """The item that is meant. Raises InvalidRequest when it is not there."""
        item_id = reference.fields.get("id")
        found = self._items.get(item_id) if isinstance(item_id, str) else None
        if found is None:
            raise InvalidRequest(
                f"`{reference.where}` refers to the item {show_value(item_id)}, which is not kept here (any more); "
                "send the item itself.",
                param=f"{reference.where}.id",
            )
        return found

    def measure(self, reference: Item) -> int:
        """How many bytes of JSON it is."""
        item_id = reference.fields["id"]
        if item_id not in self._bytes:
            self._bytes[item_id] = len(msgspec.json.encode(self._items[item_id]))
        return self._bytes[item_id]


def _find_previous(store: ResponseStore, owner: str, response_id: str | None) -> Kept | None:
    if response_id is None:
        return None
    try:
        return store.find(owner, response_id)
    except ResponseNotFound:
        raise PreviousResponseNotFound(response_id) from None


def _read_before(previous: Kept | None) -> list[dict[str, Any]]:
    """All items up to a response and with it, the oldest first."""
    turns = list_turns(previous)
    given = sum(map(_measure, turns))
    values = sum(check_shape(turn.items) + check_shape(turn.output) for turn in turns) if given <= LIMIT_BYTES else 0
    if given > LIMIT_BYTES or values > MOST_VALUES:
        raise InvalidRequest(
            f"The conversation before this request has {given:,} bytes and may have {LIMIT_BYTES:,}, with "
            f"{MOST_VALUES:,} values in them; begin a new one.",
            param="previous_response_id",
        )
    return read_conversation(previous)


def _list_references(body: ResponsesBody) -> Iterator[tuple[int, Item]]:
    """The references among a request's items, and their places."""
    items = () if isinstance(body.input, str) else body.input
    for index, fields in enumerate(items):
        item = Item(f"input[{index}]", fields)
        if item.kind == "item_reference":
            yield index, item


def _find_response_id(reference: Item) -> str:
    """The response that an item is of: its id names the request that made it."""
    item_id = reference.fields.get("id")
    _, _, rest = item_id.partition("_") if isinstance(item_id, str) else ("", "", "")
    return f"resp_{rest.partition('_')[0]}"


def _find(store: ResponseStore, owner: str, response_id: str) -> Kept | None:
    try:
        return store.find(owner, response_id)
    except ResponseNotFound:
        return None


def _measure(kept: Kept) -> int:
    return len(kept.items) + len(kept.output)
