"""Which server answers for a model: ours, or an upstream. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from server.policy import UpstreamPolicy


class Route(msgspec.Struct, frozen=True):
    """Where a request goes."""

    model: str
    """The model to ask for: the one that was named, or what the alias stands for."""
    upstream: UpstreamPolicy | None
    """None: the model that is served here."""


class Listed(msgspec.Struct, frozen=True):
    """A name that clients may ask for."""

    name: str
    model: str
    """What it means; the name itself, unless that is an alias."""
    upstream: UpstreamPolicy | None


def resolve_alias(model: str, aliases: Mapping[str, str]) -> str:
    """What a name stands for; aliases of aliases are followed, and a loop of them ends where it began."""
    seen: set[str] = set()
    while model in aliases and model not in seen:
        seen.add(model)
        model = aliases[model]
    return model


def find_upstream(model: str, upstreams: Sequence[UpstreamPolicy]) -> UpstreamPolicy | None:
    """The first that names the model; else the first with a pattern that it matches."""
    exact = next((upstream for upstream in upstreams if model in _plain_models(upstream)), None)
    return exact or next((upstream for upstream in upstreams if _matches(upstream, model)), None)


def find_route(
    model: str, is_ours: Callable[[str], bool], aliases: Mapping[str, str], upstreams: Sequence[UpstreamPolicy]
) -> Route | None:
    """Where a model's requests go; None when nobody answers for it."""
    meant = resolve_alias(model, aliases)
    if is_ours(meant):
        return Route(meant, None)
    upstream = find_upstream(meant, upstreams)
    return None if upstream is None else Route(meant, upstream)


def find_overflow(model: str, name: str, upstreams: Sequence[UpstreamPolicy]) -> Route | None:
    """Where a request goes that our own model has no place for; None when no upstream has that name.

    The upstream is asked for its first model without a `*`, unless it answers for the one that was asked.
    """
    upstream = next((upstream for upstream in upstreams if upstream.name == name), None)
    if upstream is None:
        return None
    plain = _plain_models(upstream)
    keeps = not plain or model in plain or _matches(upstream, model)
    return Route(model if keeps else plain[0], upstream)


def list_names(
    is_ours: Callable[[str], bool], aliases: Mapping[str, str], upstreams: Sequence[UpstreamPolicy]
) -> tuple[Listed, ...]:
    """Every name besides our own model's that is answered, aliases first; patterns name nothing."""
    names: dict[str, Listed] = {}
    for name in (*aliases, *_all_plain(upstreams)):
        route = None if is_ours(name) and name not in aliases else find_route(name, is_ours, aliases, upstreams)
        if route is not None:
            names.setdefault(name, Listed(name, route.model, route.upstream))
    return tuple(names.values())


def _all_plain(upstreams: Iterable[UpstreamPolicy]) -> Iterable[str]:
    for upstream in upstreams:
        yield from _plain_models(upstream)


def _plain_models(upstream: UpstreamPolicy) -> tuple[str, ...]:
    return tuple(model for model in upstream.models if "*" not in model)


def _matches(upstream: UpstreamPolicy, model: str) -> bool:
    return any(_compile(pattern).fullmatch(model) for pattern in upstream.models if "*" in pattern)


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    """A star is any text; nothing else in a pattern means more than itself."""
    return re.compile(".*".join(re.escape(part) for part in re.split(r"\*+", pattern)), re.DOTALL)
