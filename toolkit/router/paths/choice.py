"""Which way a turn takes through the engines: a handle found, what the ways cost, and limits -> a path."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.router.paths.costs import Costs


LEAST_READ_TOKENS = 64
"""What vLLM finds worth a read by default. For less no turn takes the handle that another branch can use."""


class Path(StrEnum):
    """The way of one request; sent to the client as X-KV-Path."""

    PREFILL = "prefill"
    """Prefill computes the prompt, decode pulls its blocks."""
    READBACK = "readback"
    """Prefill is offered the blocks that decode kept and computes the rest. How many tokens it took is told
    apart (X-KV-Read-Tokens): none, say, where fewer than the threshold are common."""
    DECODE_LOCAL = "decode-local"
    """Decode computes what its own cache does not hold; prefill has no part."""


class Reason(StrEnum):
    """Why a path was chosen, in a word for log and metrics."""

    FORCED = "forced"
    FORCED_UNAVAILABLE = "forced-unavailable"
    """A read was asked for, and there is nothing that may be read."""
    NOT_TRANSFERABLE = "not-transferable"
    NEW = "new"
    """Nothing is known of this conversation."""
    DECODE_AWAY = "decode-away"
    """The engine that holds the conversation takes no traffic."""
    SHORT_SUFFIX = "short-suffix"
    LONG_SUFFIX = "long-suffix"
    """Too much is new for decode to compute it beside its streams: prefill reads the rest."""
    DECODE_BUSY = "decode-busy"
    """Decode is already computing as much as it may: prefill reads."""
    NO_HANDLE = "no-handle"
    """Decode may hold the history, but nobody can read it, or so little of it that another branch's turn
    keeps the handle."""
    UNPROVEN_HISTORY = "unproven-history"
    """The handle does not prove which tokens it holds. It covers the answer too, and nobody can tell from
    outside whether the next prompt repeats that token for token."""
    MEASURED = "measured"
    """The path that would be taken was measured to be slower than this one."""
    STORED_RESPONSE = "stored-response"
    """The turn continues a response that one decode engine has stored."""
    PREFILL_AWAY = "prefill-away"
    """No prefill engine takes traffic, so decode computes alone."""
    PROBE = "probe"
    """It was measured to be slower, and is measured again."""
    RETRY = "retry"
    """An engine failed on another path; this one needs nothing that is held."""


@dataclass(slots=True)
class Turn:
    """What is known of a turn before it begins.

    Attributes:
        forced: the path that the client's header asks for.
        found: its conversation is known.
        decode_here: the decode engine that holds the conversation takes this turn.
        handle: decode's blocks can be read: there is a handle, and no other turn reads it.
        proven: the handle says by digests which tokens the blocks hold.
        prompt_tokens, held_tokens, suffix_tokens: of the prompt, at most to be read from decode, and at most
            to be computed by decode itself; estimates.
        pending_tokens: what that decode engine has yet to compute for other turns of its own.
    """

    transferable: bool
    forced: Path | None = None
    found: bool = False
    decode_here: bool = False
    handle: bool = False
    proven: bool = False
    prompt_tokens: int = 0
    held_tokens: int = 0
    suffix_tokens: int = 0
    pending_tokens: int = 0

    @property
    def readable(self) -> bool:
        """Whether prefill may be offered the handle without a danger of wrong tokens."""
        return self.found and self.decode_here and self.handle and self.proven


@dataclass(frozen=True, slots=True)
class Limits:
    """How much decode may compute by itself, in tokens, and the path that the deployment forces.

    Attributes:
        decode_local_tokens: of one turn; 0 switches the path off.
        decode_local_pending_tokens: of all turns at once on one engine.
    """

    decode_local_tokens: int = 512
    decode_local_pending_tokens: int = 2048
    path: Path | None = None


@dataclass(slots=True)
class Choice:
    """A path and why."""

    path: Path
    reason: Reason


def choose(turn: Turn, costs: Costs, limits: Limits) -> Choice:
    """The path of a turn. A path that is not measured is taken, which measures it."""
    if not turn.transferable:
        return Choice(Path.DECODE_LOCAL, Reason.NOT_TRANSFERABLE)
    forced = turn.forced or limits.path
    if forced is not None:
        return _forced(forced, turn)
    if not turn.found:
        return Choice(Path.PREFILL, Reason.NEW)
    if not turn.decode_here:
        return Choice(Path.PREFILL, Reason.DECODE_AWAY)
    why_not_local = _why_not_local(turn, limits)
    if why_not_local is None:
        local = _unless_slower(Path.DECODE_LOCAL, Reason.SHORT_SUFFIX, turn, costs)
        if local is not None:
            return local
        why_not_local = Reason.MEASURED
    if not turn.handle:
        return Choice(Path.PREFILL, Reason.NO_HANDLE)
    if not turn.readable:
        return Choice(Path.PREFILL, Reason.UNPROVEN_HISTORY)
    read = _unless_slower(Path.READBACK, why_not_local, turn, costs)
    return read or Choice(Path.PREFILL, Reason.MEASURED)


def _forced(path: Path, turn: Turn) -> Choice:
    if path is Path.READBACK and not turn.readable:
        return Choice(Path.PREFILL, Reason.FORCED_UNAVAILABLE)
    return Choice(path, Reason.FORCED)


def _why_not_local(turn: Turn, limits: Limits) -> Reason | None:
    if turn.suffix_tokens > limits.decode_local_tokens or not limits.decode_local_tokens:
        return Reason.LONG_SUFFIX
    if turn.pending_tokens + turn.suffix_tokens > limits.decode_local_pending_tokens:
        return Reason.DECODE_BUSY
    return None


def _unless_slower(path: Path, reason: Reason, turn: Turn, costs: Costs) -> Choice | None:
    """The path, unless another one was measured to be faster."""
    others = [Path.PREFILL]
    if path is Path.DECODE_LOCAL and turn.readable:
        others.append(Path.READBACK)
    mine = _estimate(path, turn, costs)
    measured = [cost for other in others if (cost := _estimate(other, turn, costs)) is not None]
    if mine is None or not measured or mine <= min(measured):
        return Choice(path, reason)
    return Choice(path, Reason.PROBE) if costs.probes(path) else None


def _estimate(path: Path, turn: Turn, costs: Costs) -> float | None:
    return costs.estimate(path, prompt=turn.prompt_tokens, held=turn.held_tokens, suffix=turn.suffix_tokens)
