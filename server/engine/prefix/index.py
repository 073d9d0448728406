"""What the second tier has: files as links of chains, each a span of tokens after its parent's. Pure.

A link is named by a hash of all tokens up to its end, so nothing but a prompt's own tokens finds it.
"""

from __future__ import annotations

import hashlib

import msgspec

from server.engine.prefix.tree import TOKEN_BYTES


class Link(msgspec.Struct, frozen=True):
    """One file."""

    id: str
    parent: str
    """Id of the tokens before it."""
    first: int
    end: int
    drafted: bool
    has_point: bool
    nbytes: int
    used_s: float
    """When it was last of use, in Unix time."""


def name_prefix(tokens: bytes, drafted: bool) -> str:
    """The id of packed tokens, for states with or without the draft head's rows."""
    return hashlib.blake2b(tokens, digest_size=16, person=b"drafted" if drafted else b"plain").hexdigest()


class Index:
    """All links of one model."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._children: dict[str, set[str]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._nbytes

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all links."""
        return tuple(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def find(self, link_id: str) -> Link | None:
        """A link by its id."""
        return self._links.get(link_id)

    def add(self, link: Link) -> None:
        """Put a link in, in place of one of the same id."""
        self.drop(link.id)
        self._links[link.id] = link
        self._nbytes += link.nbytes
        self._children.setdefault(link.parent, set()).add(link.id)

    def drop(self, link_id: str) -> Link | None:
        """Take a link out."""
        link = self._links.pop(link_id, None)
        if link is not None:
            self._nbytes -= link.nbytes
            siblings = self._children[link.parent]
            siblings.discard(link_id)
            if not siblings:
                del self._children[link.parent]
        return link

    def find_line(self, tokens: bytes, limit: int, drafted: bool) -> list[Link]:
        """The links that packed tokens go through, at most `limit` tokens in, up to the last that has a point."""
        line: list[Link] = []
        parent = name_prefix(b"", drafted)
        while children := self._children.get(parent):
            ends = sorted({self._links[child].end for child in children}, reverse=True)
            names = (name_prefix(tokens[: end * TOKEN_BYTES], drafted) for end in ends if end <= limit)
            parent = next((name for name in names if name in children), "")
            if parent:
                line.append(self._links[parent])
        while line and not line[-1].has_point:
            line.pop()
        return line

    def touch(self, line: list[Link], now_s: float) -> None:
        """Note that links were of use."""
        for link in line:
            if link.id in self._links:
                self._links[link.id] = msgspec.structs.replace(link, used_s=now_s)

    def find_oldest(self) -> Link | None:
        """The link to be dropped first: of those that nothing follows, the one used longest ago."""
        ends = (link for link in self._links.values() if link.id not in self._children)
        return min(ends, key=lambda link: (link.used_s, -link.end), default=None)
