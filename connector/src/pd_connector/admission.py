"""What a request may take from another engine, decided once when the request arrives.

`scheduler` calls `admit` with the parameters as they came and puts the answer in their place, so that
vLLM's own code only ever sees parameters that are well formed and cut to proven blocks. Pure: no vLLM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pd_connector.handle import REMOTE_MEMBERS, RETAIN, Handle, HandleError, Proof
from pd_connector.proof import BLOCK_DIGEST_BYTES, Context, block_digests, common_blocks, prompt_digest


@dataclass(frozen=True)
class Engine:
    """What the deciding engine is able to do."""

    bidirectional: bool
    decodes: bool = True
    """False for a prefill engine (`kv_role` kv_producer), which never keeps blocks for a later turn."""
    groups: int = 1
    """KV cache groups of the model; more than one is a hybrid model."""
    plain_attention: bool = True
    """All layers keep all tokens: no sliding window, no recurrent state."""
    host_buffer: bool = False
    context_parallel: bool = False
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


class Admitted(dict[str, Any]):
    """Checked parameters. A type of its own, so that no client can claim to have been checked."""

    decision: Decision | None = None
    may_pull: bool = False
    """The blocks named by `do_remote_prefill` are proven to be the prompt's."""
    retain: bool = False
    """Keep the blocks when the request is finished and answer with a handle."""
    read: int = 0
    """Tokens whose KV comes from the other engine."""
    local: int = 0
    """Tokens of the engine's own prefix cache at the time of the decision."""


def admit(raw: Mapping[str, Any], prompt: Sequence[int] | None, context: Context, engine: Engine) -> Admitted:
    """`prompt` is None where it has no token ids (embeddings): then nothing can be proven."""
    # Members with a leading underscore are the engine's own notes to itself.
    params = Admitted((name, value) for name, value in raw.items() if not name.startswith("_"))
    prefill_wanted = bool(params.get("do_remote_prefill"))
    params["do_remote_decode"] = bool(params.get("do_remote_decode"))
    params["do_remote_prefill"] = False
    if params["do_remote_decode"]:
        if params.get("remote_block_ids"):
            params.decision = _admit_readback(params, prompt, context, engine)
        else:
            _forget_remote(params)
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
    common, reason = 0, engine.obstacle() or ""
    if not reason:
        try:
            common = _proven_blocks(handle, Proof.of(params), prompt, context)
            reason = "ok" if common else "other-tokens"
        except HandleError as error:
            reason = error.args[0]
    # With no common block the ids stay: vLLM then reads nothing and tells decode to free its blocks.
    params["remote_num_tokens"] = common * context.block_size
    params["remote_block_ids"] = [handle.groups[0][:common]] if common else handle.groups
    return Decision("readback", reason, handle.tokens, common * context.block_size)


def _proven_blocks(handle: Handle, proof: Proof, prompt: Sequence[int] | None, context: Context) -> int:
    size = context.block_size
    if proof.block_size != size:
        raise HandleError("other-block-size")
    blocks = proof.tokens // size
    if len(proof.digests) != blocks * BLOCK_DIGEST_BYTES or blocks > len(handle.groups[0]):
        raise HandleError("malformed-proof")
    if prompt is None:
        raise HandleError("no-token-ids")
    return common_blocks(block_digests(prompt[: proof.tokens], context), proof.digests)


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
        handle = Handle.of(params)
        held = handle.tokens
        if len(handle.groups) != engine.groups:
            raise HandleError("other-groups")
    except HandleError as error:
        _forget_remote(params)
        return Decision(event, error.args[0], held)
    return handle


def _forget_remote(params: Admitted) -> None:
    for name in REMOTE_MEMBERS:
        params.pop(name, None)
