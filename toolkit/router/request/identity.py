"""PURE: whose conversation a request continues, told by its own history or by a name.

A turn is saved under a digest of its request's history (`Keys.end`). The next turn's history begins with the
same bytes, so a digest of its own beginning is equal: no reply need be parsed and no client need send an id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from xxhash import xxh3_128

TENANT_BYTES = 16
# Of the latest tenants the digest is known without making it.
_TENANTS = 1024
KEY_BYTES = 32
"""The tenant's 16 and a digest of 16: no key of one tenant ever equals a key of another."""

# Below its first point a prompt's text has no identity: too many prompts begin alike.
_FINE_GRID, _FINE_UP_TO, _COARSE_GRID = 512, 16 * 1024, 4096
_LONGEST = 1 << 28

_CACHE_MARK = b'"cache_control"'
_MARK_NEAR_END = 160
# Inside a JSON string the quotes would be escaped.
_MARK = re.compile(rb'\s*,\s*"cache_control"\s*:\s*\{[^{}]*\}')


class _HasValues(Protocol):
    def all(self, name: bytes) -> Sequence[bytes]: ...


@dataclass(slots=True)
class Scope:
    """What must be equal before two histories are compared at all.

    Attributes:
        tenant: from `tenant`.
        cache_key: the client's prompt_cache_key. Clients share one between many conversations, so it narrows
            the search and names a conversation only where the history cannot.
        before: encoded members that stand before the history in the prompt or change how it is rendered
            (tools, system, instructions, template arguments), in a fixed order, empty where absent.
    """

    tenant: bytes
    endpoint: str
    model: str
    cache_salt: str | None = None
    cache_key: str | None = None
    before: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt without parts. Turns end anywhere in it, so keys at given lengths are made when asked for.

    Attributes:
        length: bytes of the prompt as it will be found in the next turn's.
    """

    body: bytes | memoryview
    length: int
    tenant: bytes
    start: bytes

    def keys_at(self, lengths: Sequence[int]) -> Iterator[bytes]:
        """The key of the first so many bytes, for each of some ascending lengths up to the body's."""
        running, place = xxh3_128(self.start), 0
        for length in lengths:
            running.update(self.body[place:length])
            place = length
            yield self.tenant + running.digest()


@dataclass(slots=True)
class Keys:
    """Under which keys a conversation may be found, each of 32 bytes.

    Attributes:
        explicit: the key of the client's own name for it; then no other is used.
        chain: one key per message, over it and all before it. For a prompt's text one at each point of a
            fixed grid, which only tell where to look (`Text.keys_at`).
        end: the key under which this turn is saved; None: nothing to tell it by.
        text: of a prompt's text or tokens; None where the history has parts.
        sizes: bytes of each message.
    """

    explicit: bytes | None
    chain: tuple[bytes, ...] = ()
    end: bytes | None = None
    text: Text | None = None
    sizes: tuple[int, ...] = ()


def tenant(headers: _HasValues, secret: bytes) -> bytes:
    """Whose request it is: a digest of its credentials that says nothing without the secret (16 to 64 bytes).

    Raises:
        ValueError: the secret is shorter or longer.
    """
    if not 16 <= len(secret) <= 64:
        raise ValueError("the tenant secret must have 16 to 64 bytes")
    return _tenant(secret, tuple(headers.all(b"authorization")), tuple(headers.all(b"x-api-key")))


@lru_cache(_TENANTS)
def _tenant(secret: bytes, *credentials: tuple[bytes, ...]) -> bytes:
    text = repr([list(each) for each in credentials])
    return blake2b(text.encode(), key=secret, digest_size=TENANT_BYTES).digest()


def keys_of_messages(scope: Scope, messages: Sequence[bytes], name: str | None = None) -> Keys:
    """Keys of a history in parts, each the JSON text of one message or item (equal in every turn)."""
    if not messages:
        return keys_of_name(scope, name)
    running = xxh3_128(_start(scope))
    update, digest, whose = running.update, running.digest, scope.tenant
    chain: list[bytes] = []
    for message in messages:
        update(message if message.rfind(_CACHE_MARK, -_MARK_NEAR_END) < 0 else _without_cache_mark(message))
        # No JSON text has a zero byte: parts do not run into each other.
        update(b"\0")
        chain.append(whose + digest())
    return Keys(_named(scope, "name", name), tuple(chain), chain[-1], sizes=tuple(map(len, messages)))


def keys_of_prompt(scope: Scope, prompt: bytes, name: str | None = None) -> Keys:
    """Keys of one prompt, given as the JSON text of a string or of a list of token ids."""
    if prompt[:1] not in (b'"', b"[") or len(prompt) >= _LONGEST:
        return keys_of_name(scope, name)
    # Without the closing quote or bracket it is how a longer prompt begins; after a token comes a comma.
    body, tail = memoryview(prompt)[:-1], b"" if prompt[:1] == b'"' else b","
    start = _start(scope)
    running = xxh3_128(start)
    update, digest, whose = running.update, running.digest, scope.tenant
    chain: list[bytes] = []
    place = 0
    for point in _grid(len(body)):
        update(body[place:point])
        place = point
        chain.append(whose + digest())
    if not chain:
        return keys_of_name(scope, name)
    update(body[place:])
    update(tail)
    text = Text(body, len(body) + len(tail), whose, start)
    return Keys(_named(scope, "name", name), tuple(chain), whose + digest(), text)


def keys_of_name(scope: Scope, name: str | None) -> Keys:
    """Keys of a request whose history tells nothing: only a name finds it."""
    return Keys(_named(scope, "name", name) or _named(scope, "cache key", scope.cache_key))


def _named(scope: Scope, kind: str, name: str | None) -> bytes | None:
    if not name:
        return None
    fields = repr([scope.endpoint, scope.model, scope.cache_salt, kind, name])
    return scope.tenant + blake2b(fields.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _start(scope: Scope) -> bytes:
    """The first bytes of every digest; with lengths, so that no two scopes run into each other."""
    fields = [scope.endpoint, scope.model, scope.cache_salt, scope.cache_key, *map(len, scope.before)]
    return b"".join([repr(fields).encode("utf-8", "surrogatepass"), *scope.before])


def _grid(length: int) -> Iterator[int]:
    yield from range(_FINE_GRID, min(length, _FINE_UP_TO) + 1, _FINE_GRID)
    yield from range(_FINE_UP_TO + _COARSE_GRID, length + 1, _COARSE_GRID)


def _without_cache_mark(message: bytes) -> bytes:
    """Clients of /v1/messages mark the newest message for caching and unmark it in the next turn."""
    return message[:-_MARK_NEAR_END] + _MARK.sub(b"", message[-_MARK_NEAR_END:])
