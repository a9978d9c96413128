"""What the map of conversations is told and tells."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.router.memory.handle import Handle


@dataclass(slots=True)
class Held:
    """What a decode engine has of a conversation.

    Attributes:
        leg: the engine's URL.
        handle: None: nothing is pinned, or another turn is reading it; the engine's prefix cache may have it.
        tokens: of prompt and answer together, as far as known.
        history_bytes: length of the request's history.
        saved_at: when the engine gave the handle, seconds of the map's clock.
        used_at: when the conversation's latest turn was.
        prompt_tokens: of the turn's prompt alone; None: not told.
    """

    leg: str
    handle: Handle | None
    tokens: int
    history_bytes: int
    saved_at: float
    used_at: float
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """A lease that nobody will use: superseded, evicted, expired, nameless, or what `drop` was told."""

    leg: str
    lease: str = field(repr=False)
    why: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation as it is kept outside of the process.

    Attributes:
        key: names it; 32 bytes.
        ids: the tenant's 16 bytes, then 16 for each key that finds it.
        named: found by the client's name alone.
        ends: 20 bytes for each turn: of a prompt's text the grid point before its end and the length; of what
            has a name the digest of the turn's history and, of a text, the length.
    """

    key: bytes
    ids: bytes
    named: bool
    ends: bytes
    held: Held


class Journal:
    """Is told of every change, in order; this one forgets it. None of these may wait."""

    def saved(self, entry: Entry) -> None:
        """A conversation is new, or has its handle back."""

    def handle_left(self, key: bytes) -> None:
        """Its handle is being read, or of no use any more."""

    def removed(self, key: bytes) -> None:
        """The conversation is gone."""

    def leg_dropped(self, leg: str) -> None:
        """All conversations of this leg are gone."""
