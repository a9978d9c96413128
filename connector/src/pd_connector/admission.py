"""What a request may take from another engine, decided once when the request arrives.

`scheduler` calls `admit` with the parameters as they came and puts the answer in their place, so that
vLLM's own code only ever sees parameters that are well formed and cut to proven blocks. Pure: no vLLM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pd_connector.handle import (
    BLOCKS,
    REMOTE_MEMBERS,
    RETAIN,
    Handle,
    HandleError,
    Proof,
    is_signed,
    released_leases,
    seal,
)
from pd_connector.proof import (
    BLOCK_DIGEST_BYTES,
    Context,
    block_digests,
    common_blocks,
    marks,
    prompt_digest,
)


@dataclass(frozen=True)
class Engine:
    """What the deciding engine is able to do."""

    bidirectional: bool
    decodes: bool = True
    """False for a prefill engine (`kv_role` kv_producer), which never keeps blocks for a later turn."""
    most_tokens: int = 1 << 20
    """Of a prompt and its answer; a block has one at least."""
    groups: int = 1
    """KV cache groups of the model; more than one is a hybrid model."""
    plain_attention: bool = True
    """All layers keep all tokens: no sliding window, no recurrent state."""
    host_buffer: bool = False
    context_parallel: bool = False
    identifier: str = ""
    secret: bytes | None = field(default=None, repr=False)
    """What the engines share; with one, only handles that are signed with it are used."""
    sibling: bool = False
    """This one request is the second or a later choice (`n`) of one that a client sent."""
    barred: str | None = None
    """Why this one request must be computed whole, whatever the engine could do."""

    def obstacle(self) -> str | None:
        """Why this engine must not read blocks back, whatever the handle says."""
        if self.barred:
            return self.barred
        if self.groups != 1 or not self.plain_attention:
            return "hybrid-model"
        if self.host_buffer:
            return "host-buffer"
        if self.context_parallel:
            return "context-parallel"
        return None


@dataclass(frozen=True)
class Decision:
    """One log line's worth: what was offered and what of it is this prompt's own."""

    event: str
    reason: str
    held: int = 0
    common: int = 0


@dataclass(frozen=True)
class Source:
    """The lease under which the other engine holds the blocks, and what the handle said of them."""

    lease: str
    seal: str


class Admitted(dict[str, Any]):
    """Checked parameters. A type of its own, so that no client can claim to have been checked."""

    decision: Decision | None = None
    may_pull: bool = False
    """The blocks named by `do_remote_prefill` are proven to be the prompt's."""
    retain: bool = False
    """Keep the blocks when the request is finished and answer with a handle."""
    read: int = 0
    """Tokens whose KV comes from the other engine."""
    release: Sequence[str] = ()
    """Leases of this engine that the request lets go of."""
    source: Source | None = None
    """Whom to ask before the blocks are read."""
    local: int = 0
    """Tokens of the engine's own prefix cache at the time of the decision."""


def admit(raw: Mapping[str, Any], prompt: Sequence[int] | None, context: Context, engine: Engine) -> Admitted:
    """`prompt` is None where it has no token ids (embeddings): then nothing can be proven."""
    # Members with a leading underscore are the engine's own notes to itself.
    params = Admitted((name, value) for name, value in raw.items() if not name.startswith("_"))
    prefill_wanted = bool(params.get("do_remote_prefill"))
    params.release = released_leases(params)
    params["do_remote_decode"] = bool(params.get("do_remote_decode"))
    params["do_remote_prefill"] = False
    if params["do_remote_decode"]:
        if params.get("remote_block_ids") or params.get(BLOCKS):
            params.decision = _admit_readback(params, prompt, context, engine)
        else:
            _forget_remote(params)
    elif prefill_wanted and engine.sibling:
        # The first choice pulls, and prefill then frees its blocks; the others compute what they do not find.
        _forget_remote(params)
        params.decision = Decision("pull", "other-choice")
        params.retain = engine.bidirectional and engine.decodes and params.get(RETAIN) is not False
    elif prefill_wanted:
        params.decision = _admit_pull(params, prompt, context, engine)
        # Unless the sender says that nobody will come back for them.
        params.retain = engine.bidirectional and engine.decodes and params.get(RETAIN) is not False
    else:
        _forget_remote(params)
        params.retain = engine.bidirectional and engine.decodes and params.get(RETAIN) is True
    return params


def _admit_readback(
    params: Admitted, prompt: Sequence[int] | None, context: Context, engine: Engine
) -> Decision:
    """Prefill: cut the handle to the leading blocks whose tokens are the prompt's own."""
    if not engine.bidirectional:
        _forget_remote(params)
        return Decision("readback", "bidirectional-off")
    handle = _read_handle("readback", params, engine)
    if isinstance(handle, Decision):
        return handle
    common, held, reason = 0, 0, engine.obstacle() or ""
    if not reason:
        try:
            proof = Proof.of(params)
            held = proof.tokens
            common = _proven_blocks(handle, proof, prompt, context)
            reason = "ok" if common else "other-tokens"
        except HandleError as error:
            reason = error.args[0]
    # With no common block the ids stay: vLLM then reads nothing and tells decode to free its blocks.
    params["remote_num_tokens"] = common * context.block_size
    if common:
        params["remote_block_ids"] = [handle.groups[0][:common]]
    return Decision("readback", reason, held, common * context.block_size)


def _proven_blocks(handle: Handle, proof: Proof, prompt: Sequence[int] | None, context: Context) -> int:
    size = context.block_size
    if not handle.lease:
        raise HandleError("no-lease")
    if proof.block_size != size:
        raise HandleError("other-block-size")
    blocks = proof.tokens // size
    # Compared first: the marks of a hostile number of blocks would not fit into memory.
    if blocks != len(handle.groups[0]) or len(proof.digests) != len(marks(blocks)) * BLOCK_DIGEST_BYTES:
        raise HandleError("malformed-proof")
    if prompt is None:
        raise HandleError("no-token-ids")
    return common_blocks(block_digests(prompt[: proof.tokens], context, blocks), proof.digests, blocks)


def _admit_pull(params: Admitted, prompt: Sequence[int] | None, context: Context, engine: Engine) -> Decision:
    """Decode: prefill's blocks are taken whole, or not at all."""
    handle = _read_handle("pull", params, engine)
    if isinstance(handle, Decision):
        return handle
    held = handle.tokens
    # From here the engine at the other end is known and waits to be told, read or not.
    params["do_remote_prefill"] = True
    try:
        _prove_prompt(handle, Proof.of(params), prompt, context, engine)
    except HandleError as error:
        return Decision("pull", error.args[0], held)
    params.may_pull = True
    return Decision("pull", "ok", held, held)


def _prove_prompt(
    handle: Handle, proof: Proof, prompt: Sequence[int] | None, context: Context, engine: Engine
) -> None:
    if engine.barred:
        raise HandleError(engine.barred)
    if not handle.lease:
        raise HandleError("no-lease")
    if prompt is None:
        raise HandleError("no-token-ids")
    # Elsewhere the number of blocks is the model's affair: windows and states are not kept whole.
    whole = engine.groups == 1 and engine.plain_attention
    if whole and len(handle.groups[0]) != -(-proof.tokens // proof.block_size):
        raise HandleError("malformed-proof")
    # Prefill's blocks may be of another size than ours; its digest was made with its own.
    theirs = Context(context.model, proof.block_size, context.cache_salt, context.lora, context.media)
    if proof.tokens != len(prompt) or proof.digests != prompt_digest(prompt, theirs):
        raise HandleError("other-tokens")


def _read_handle(event: str, params: Admitted, engine: Engine) -> Handle | Decision:
    """The handle; or, where it is of no use, the decision to take nothing, its members forgotten."""
    held = 0
    try:
        # First: whatever else is looked at costs work.
        if engine.secret is not None and not is_signed(params, engine.secret):
            raise HandleError("unsigned")
        handle = Handle.of(params, engine.groups, engine.most_tokens)
        held = handle.tokens
        if params["remote_engine_id"] == engine.identifier:
            raise HandleError("own-engine")
        params.source = Source(handle.lease, seal(params))
    except HandleError as error:
        _forget_remote(params)
        return Decision(event, error.args[0], held)
    # vLLM knows only its own member.
    params["remote_block_ids"] = handle.groups
    params.pop(BLOCKS, None)
    return handle


def _forget_remote(params: Admitted) -> None:
    for name in REMOTE_MEMBERS:
        params.pop(name, None)
