"""Who may call: which addresses only this machine reaches, and whose key a request carries. Pure.

Keys are compared as digests, and each with all of them: how long an answer takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

from server.errors import PolicyInvalid
from server.policy import Policy, ServerPolicy

PLAIN_NAME = "api_key"
"""Who sends the key of `server.api_key`."""

NUMBERED_NAME = "key-{}"
"""Who sends one of the keys of `server.api_keys_env`, counted from 1."""

_KEY = re.compile(r"[\x21-\x7e]{1,512}")
"""What an HTTP header carries unchanged from every client."""


class KeyRing:
    """The keys of one policy. Holds digests, not the keys: what is printed or logged of it gives none away."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Whose keys there are; empty when none is asked for."""
        return tuple(self._digests)

    def find(self, given: str) -> str | None:
        """Whose key this is, None when nobody's."""
        digest, found = _digest(given), None
        for name, held in self._digests.items():
            if hmac.compare_digest(digest, held):
                found = name
        return found


class KeySource:
    """Hands out the keys of the policy in force, read anew only when that is another one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._server, self._keys = ServerPolicy(), KeyRing({})

    def read(self, server: ServerPolicy) -> KeyRing:
        """The keys of a policy that `check_access` has passed."""
        if server is not self._server:
            self._server, self._keys = server, load_keys(server, self._environment)
        return self._keys


def load_keys(server: ServerPolicy, environment: Mapping[str, str]) -> KeyRing:
    """All keys that the policy names. Raises PolicyInvalid, which never quotes one.

    A variable that is named and not there is a fault and not "no key needed"; so is one key under two names.
    """
    named: dict[str, str] = {}
    for name, key, limit in _list_keys(server, environment):
        if not _KEY.fullmatch(key):
            raise PolicyInvalid(f"{limit}: a key is 1 to 512 visible ASCII characters, and this one is not.", key=limit)
        if name in named:
            raise PolicyInvalid(f"{limit}: another key goes by the name {name} already; take another name.", key=limit)
        twin = next((other for other, held in named.items() if held == key), None)
        if twin is not None:
            raise PolicyInvalid(
                f"{limit}: {name} has the same key as {twin}, so nobody could tell who asks; give each their own.",
                key=limit,
            )
        named[name] = key
    unknown = next((name for name in server.read_only_keys if name not in named), None)
    if unknown is not None:
        raise PolicyInvalid(
            f"server.read_only_keys: {unknown} is no key's name; there are: {', '.join(named) or 'none'}.",
            key="server.read_only_keys",
        )
    return KeyRing(named)


def check_access(server: ServerPolicy, environment: Mapping[str, str]) -> None:
    """Raise PolicyInvalid for keys that cannot be had, and for a server that anyone could use unasked."""
    load_keys(server, environment)
    if is_loopback(server.host) or server.wants_key or server.allow_unauthenticated:
        return
    raise PolicyInvalid(
        f"server.host {server.host} answers other machines too, and no key is set: set one (server.api_key, "
        "server.api_keys_env or [server.keys]), listen at 127.0.0.1, or let everyone in with "
        "server.allow_unauthenticated = true.",
        key="server.host",
    )


def answers_strangers(host: str, server: ServerPolicy) -> bool:
    """True when a server that listens at `host` answers other machines, whoever asks."""
    return not is_loopback(host) and not server.wants_key and server.allow_unauthenticated


def list_warnings(policy: Policy) -> tuple[str, ...]:
    """Sentences about values that are allowed and still worth a second look."""
    server = policy.server
    if not answers_strangers(server.host, server):
        return ()
    return (f"server.host {server.host} answers other machines too, without any key (server.allow_unauthenticated).",)


def is_loopback(host: str) -> bool:
    """True when only this machine can reach a listener at `host`; a name that may mean anything is not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def _list_keys(server: ServerPolicy, environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(name, key, limit that names it) of every key."""
    if server.api_key:
        yield PLAIN_NAME, server.api_key, "server.api_key"
    for number, key in enumerate(_split(server.api_keys_env, environment), 1):
        yield NUMBERED_NAME.format(number), key, "server.api_keys_env"
    for name, variable in server.keys.items():
        yield name, _read_variable(variable, "server.keys", environment), "server.keys"


def _split(variable: str, environment: Mapping[str, str]) -> Iterable[str]:
    if not variable:
        return ()
    keys = [key.strip() for key in _read_variable(variable, "server.api_keys_env", environment).split(",")]
    return [key for key in keys if key]


def _read_variable(variable: str, limit: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable, "").strip()
    if not value.strip(", "):
        fault = "is empty" if variable in environment else "is not set"
        raise PolicyInvalid(
            f"{limit}: the environment variable {variable} {fault}; set it where homebase-console is started, or take "
            f"its name out of the file.",
            key=limit,
        )
    return value


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
