"""A response's input as a list of items, each with an id and in its full form, in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.errors import InvalidRequest

PAGE_ITEMS = 20
PAGE_ITEMS_MOST = 100
"""As OpenAI's."""


def list_items(response_id: str, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items in their full form. Those without an id get one that names the response and the place."""
    key = response_id.removeprefix("resp_")
    return [_complete(item, f"{_prefix(item)}_{key}_in{index}") for index, item in enumerate(items)]


def read_page(items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """The page that `limit`, `order` and `after` ask for. Raises InvalidRequest."""
    ordered = items if _read_order(query) == "asc" else items[::-1]
    limit, after = _read_limit(query), query.get("after")
    if after is not None:
        place = next((index for index, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise InvalidRequest("`after` must be the id of an item of this list; no item has it.", param="after")
        ordered = ordered[place + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(page) < len(ordered),
    }


def _complete(item: Mapping[str, Any], item_id: str) -> dict[str, Any]:
    full = {"type": "message", **item}
    full["id"] = item.get("id") or item_id
    if full["type"] == "message":
        full["content"] = _list_parts(item)
    if full["type"] in ("message", "function_call", "function_call_output"):
        full["status"] = item.get("status") or "completed"
    return full


def _list_parts(item: Mapping[str, Any]) -> Any:
    content = item.get("content")
    if not isinstance(content, str):
        return content or []
    if item.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": []}]
    return [{"type": "input_text", "text": content}]


def _prefix(item: Mapping[str, Any]) -> str:
    kind = str(item.get("type", "message"))
    return {"message": "msg", "reasoning": "rs", "function_call": "fc"}.get(kind, "item")


def _read_order(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` must be asc or desc.", param="order")
    return order


def _read_limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(PAGE_ITEMS))
    if given.isascii() and given.isdigit() and 1 <= int(given) <= PAGE_ITEMS_MOST:
        return int(given)
    raise InvalidRequest(f"`limit` must be a whole number from 1 to {PAGE_ITEMS_MOST}.", param="limit")
