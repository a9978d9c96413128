"""The scheduler's half of the connector: proof onto every handle it gives, check of every handle it gets.

vLLM's own NIXL scheduler does the rest; it is handed parameters that `admission` has cut and checked.
"""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.logger import init_logger

from pd_connector.admission import Admitted, Engine, admit
from pd_connector.asker import Asker
from pd_connector.engineconfig import AUTO_NOTE
from pd_connector.greetings import Greetings
from pd_connector.handle import BLOCKS, LEASE, PROOF, READ, SIGNATURE, Proof, seal, sign, to_wire
from pd_connector.leases import BACKSTOP_SECONDS, LeaseBook
from pd_connector.measure import ReadMeter
from pd_connector.pressure import Pool, Pressure
from pd_connector.proof import Context, block_digests, prompt_digest
from pd_connector.secretfile import SECRET_FILE_KEY, read_secret
from pd_connector.sidechannel import Question, answering, serving
from pd_connector.threshold import NEVER
from pd_connector.versions import RefusedError, require

# vLLM's loggers are configured by name; a name of our own would print nothing.
logger = init_logger("vllm.pd_connector")

# 0.21 has one scheduler under the older name; from 0.24 that name is an alias.
_Stock: Any = getattr(nixl, "NixlPullConnectorScheduler", None) or nixl.NixlConnectorScheduler
_RELIED_ON = (
    "block_size",
    "is_bidirectional_kv_xfer_enabled",
    "kv_recompute_threshold",
    "use_host_buffer",
    "_is_hma_required",
    "_nixl_handshake_listener",
    "_reqs_in_batch",
    "_reqs_need_recv",
    "_reqs_need_send",
    "_reqs_not_processed",
)
# vLLM names the choices of one request so: index, underscore, the request's own name.
_CHOICE = re.compile(r"(\d+)_(.+)")


class ProvingScheduler(_Stock):  # type: ignore[misc]
    """vLLM's NIXL scheduler that neither offers nor takes blocks without proof of their tokens."""

    kv_recompute_threshold: int

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        require(self, _RELIED_ON)
        self.book = LeaseBook(float(getattr(self, "decoder_kv_blocks_ttl", 480)))
        self._reading: dict[str, tuple[Admitted, frozenset[int]]] = {}
        self.asker = Asker()
        self._greetings = Greetings(self.asker.ask)
        self.pressure = Pressure(self.book, vllm_config.scheduler_config.max_num_seqs + 4)
        extra = vllm_config.kv_transfer_config.get_from_extra_config
        auto = extra(AUTO_NOTE, False)
        self.meter = ReadMeter(self.kv_recompute_threshold, logger.info) if auto else None
        parallel = vllm_config.parallel_config
        contexts = getattr(parallel, "decode_context_parallel_size", 1)
        contexts *= getattr(parallel, "prefill_context_parallel_size", 1)
        groups = getattr(kv_cache_config, "transfer_groups", None) or kv_cache_config.kv_cache_groups
        plain = not self._is_hma_required and all(
            group.kv_cache_spec.block_size == self.block_size for group in groups
        )
        self._model: str = vllm_config.model_config.model
        self._block_tokens: int = self.block_size * contexts
        self._engine = Engine(
            bidirectional=bool(self.is_bidirectional_kv_xfer_enabled),
            decodes=vllm_config.kv_transfer_config.kv_role != "kv_producer",
            groups=len(groups),
            plain_attention=plain,
            host_buffer=bool(self.use_host_buffer),
            context_parallel=contexts > 1,
            identifier=engine_id,
            secret=_shared_secret(extra(SECRET_FILE_KEY, None)),
            most_tokens=vllm_config.model_config.max_model_len,
        )

    def on_new_request(self, request: Any) -> None:
        """First sight of a request, where vLLM has this hook (from 0.24)."""
        params = self._admit(request)
        if params is not None and params["do_remote_prefill"]:
            question = self._question(request) if params.may_pull else None
            if question is None or not self._greetings.may_greet(request, question):
                return
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that will come from the other engine, and whether they come while others run."""
        params = self._admit(request)
        self._demand(request, num_computed_tokens)
        if params is None:
            return 0, False
        params.local = num_computed_tokens
        # A second look-up (failed read under the policy `recompute`, or a preemption): vLLM reads once
        # per request, so a second promise of the same tokens would be waited for without end.
        already_read = bool(params.get("_remote_blocks_processed"))
        if already_read:
            params.read = 0
        if already_read or (params["do_remote_prefill"] and not params.may_pull):
            return 0, False
        if self.meter is not None and params["do_remote_decode"]:
            missing = params.get("remote_num_tokens", 0) - num_computed_tokens
            if missing > 0:
                self.kv_recompute_threshold = 1 if self.meter.calibration.wanted(missing) else NEVER
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The decision is final once the request has its blocks; here it is logged."""
        params = self._admit(request)
        self.pressure.admitted(request.request_id)
        if params is not None and num_external_tokens:
            params.read = num_external_tokens
            if self.meter is not None:
                self.meter.read_begins(request.request_id, num_external_tokens)
        if params is not None and params.decision is not None:
            decision, params.decision = params.decision, None
            reason = decision.reason
            if reason == "unsigned":
                logger.warning_once(
                    "pd-connector: handles come without a valid signature and are not used; "
                    "does the other side know the same secret?"
                )
            if reason == "ok" and not num_external_tokens:
                reason = "below-threshold" if decision.common > params.local else "held-locally"
            logger.info(
                "pd-connector: %s request=%s remote=%s held=%d common=%d local=%d read=%d reason=%s",
                decision.event,
                request.request_id,
                params.get("remote_request_id", "-"),
                decision.held,
                decision.common,
                params.local,
                num_external_tokens,
                reason,
            )
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if params is not None and num_external_tokens and request.request_id in self._reqs_need_recv:
            filled = self._reqs_need_recv[request.request_id][1]
            self._reading[request.request_id] = params, frozenset(filled[0]) if filled else frozenset()

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """vLLM's metadata of this step, with what our half of the worker must know."""
        tokens = scheduler_output.total_num_scheduled_tokens
        if self.meter is not None:
            self.meter.step_begins(tokens)
        given_up = self.pressure.relieve(bool(tokens))
        for lease in given_up:
            logger.info("pd-connector: lease given up: request=%s held=%d", lease.request, lease.tokens)
        self.book.sweep()
        for request in self._greetings.confirmed():
            super().on_new_request(request)
        questions = {name: self._question(entry[0]) for name, entry in self._reqs_need_recv.items()}
        meta = super().build_connector_meta(scheduler_output)
        meta.pd_questions = {name: question for name, question in questions.items() if question}
        meta.pd_deadlines = self.book.take_deadlines()
        meta.pd_clock = time.perf_counter()
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers finished with this step."""
        super().update_connector_output(connector_output)
        self._note_failed_reads(connector_output)
        if self.meter is not None:
            self.meter.step_ends(connector_output)
        for name in connector_output.finished_sending or ():
            self.book.freed(name)
        for name in connector_output.finished_recving or ():
            self._greetings.forget(name)

    def _note_failed_reads(self, output: Any) -> None:
        """What must be computed after all was not read."""
        invalid = getattr(output, "invalid_block_ids", None) or frozenset()
        failed = getattr(output, "failed_recving", None) or ()
        for name, (params, blocks) in self._reading.items():
            if name in failed or not blocks.isdisjoint(invalid):
                params.read = 0
        for name in output.finished_recving or ():
            self._reading.pop(name, None)

    def watch_pool(self, pool: Pool) -> None:
        """From here on leases are given up when blocks run short."""
        self.pressure.watch(pool)

    def has_pending_block_frees(self) -> bool:
        """vLLM from 0.31 on asks this before it preempts a running request."""
        return self.pressure.spares_running()

    def threshold(self) -> int:
        """Tokens from which on a read is worth it."""
        return int(self.kv_recompute_threshold) if self.meter is None else self.meter.calibration.tokens()

    def only_holds(self) -> bool:
        """Nothing but the holding of blocks is under way, and the workers know all there is to know."""
        return not (
            self._reqs_need_recv or self._reqs_need_send or self.book.has_news() or self.book.leaving()
        )

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks stay for another engine, and the handle by which it finds them."""
        params = self._admit(request)
        self.pressure.admitted(request.request_id)
        self._reading.pop(request.request_id, None)
        self._greetings.forget(request.request_id)
        if self.meter is not None:
            self.meter.forget(request.request_id)
        if params is None:
            return False, None
        unseen = not request.num_computed_tokens and not params.get("_remote_blocks_processed")
        if params["do_remote_decode"] and params.source and unseen:
            # Aborted before it was scheduled: of itself vLLM tells the holder only for a pull.
            params["do_remote_prefill"] = True
        if not (params["do_remote_decode"] or params["do_remote_prefill"] or params.retain):
            return False, None
        delayed, handle = super().request_finished(request, block_ids)
        if not delayed or handle is None:
            return delayed, handle
        # The last sampled token has no KV yet, and drafts in flight are counted as computed.
        tokens = min(handle["remote_num_tokens"], request.num_tokens - 1)
        if params["do_remote_decode"]:
            self._hand_off(request, handle, tokens)
            handle[READ] = params.read
            return delayed, handle
        return self._hold(request, handle, tokens)

    def _admit(self, request: Any) -> Admitted | None:
        params = request.kv_transfer_params
        if isinstance(params, Admitted):
            return params
        # They would go to the workers with every new request, which have no use for them.
        (getattr(request.sampling_params, "extra_args", None) or {}).pop("kv_transfer_params", None)
        if not isinstance(params, dict) or not params:
            request.kv_transfer_params = None
            return None
        prompt = request.prompt_token_ids
        if prompt is not None and not params.get("do_remote_decode"):
            # With recurrent state prefill leaves the last token to decode, and proves one token less.
            prompt = prompt[: self._pulled_tokens(len(prompt))]
        choice = _CHOICE.fullmatch(request.request_id)
        engine = replace(self._engine, sibling=bool(choice and choice[1] != "0"))
        if getattr(request.sampling_params, "prompt_logprobs", None) is not None:
            # They come from computing the prompt; vLLM 0.29 ends in an overflow where part of it is pulled.
            engine = replace(engine, barred="prompt-logprobs")
        admitted = admit(params, prompt, self._context(request), engine)
        request.kv_transfer_params = admitted
        for lease in admitted.release:
            self.book.release(lease)
        return admitted

    def _pulled_tokens(self, prompt_tokens: int) -> int:
        count = getattr(self, "_get_remote_prefill_token_count", None)
        return int(count(prompt_tokens)) if count else prompt_tokens

    def _context(self, request: Any) -> Context:
        lora = getattr(request, "lora_request", None)
        media = getattr(request, "mm_features", None) or ()
        return Context(
            model=self._model,
            block_size=self._block_tokens,
            cache_salt=getattr(request, "cache_salt", None),
            lora=lora.lora_name if lora else None,
            media=tuple(feature.identifier for feature in media),
        )

    def _demand(self, request: Any, computed: int) -> None:
        size = self._block_tokens
        whole = -(-(request.num_tokens + 1) // size)
        self.pressure.demand(request.request_id, whole - computed // size, whole)

    def _question(self, request: Any) -> Question | None:
        params = request.kv_transfer_params
        if not isinstance(params, Admitted) or params.source is None:
            return None
        return Question(
            params["remote_host"],
            params["remote_port"],
            params.source.lease,
            f"{self.engine_id}/{request.request_id}",
            params.source.seal,
        )

    def _nixl_handshake_listener(self, encoded_data: dict[Any, Any], *args: Any, **kwargs: Any) -> None:
        """The thread that serves handshakes, by rank; it answers readers as well."""
        with serving(self.book.begin_read, encoded_data.keys()):
            _Stock._nixl_handshake_listener(encoded_data, *args, **kwargs)

    def _hand_off(self, request: Any, handle: dict[str, Any], tokens: int) -> None:
        """Prefill's blocks, for the decode engine's pull of exactly this prompt."""
        context = self._context(request)
        digest = prompt_digest(request.all_token_ids[:tokens], context)
        handle["remote_num_tokens"] = tokens
        handle[PROOF] = Proof(context.block_size, tokens, digest).to_wire()
        _compact(handle)
        lease = self.book.grant(request.request_id, (), tokens, seal(handle), handoff=True)
        handle[LEASE] = lease.identifier
        self._sign(handle)

    def _hold(self, request: Any, handle: dict[str, Any], tokens: int) -> tuple[bool, dict[str, Any] | None]:
        """Decode's blocks, for a later turn: whole ones only; with none to offer, keep none."""
        identifier = request.request_id
        obstacle = self._engine.obstacle()
        blocks = 0 if obstacle else tokens // self._block_tokens
        if not blocks:
            self._reqs_need_send.pop(identifier, None)
            self._reqs_not_processed.add(identifier)
            logger.info(
                "pd-connector: retain request=%s held=0 blocks=0 reason=%s", identifier, obstacle or "short"
            )
            return False, None
        # A request that took nothing from prefill is unknown to the worker, which would then drop the
        # deadline and keep the blocks for good.
        self._reqs_in_batch.add(identifier)
        tokens = blocks * self._block_tokens
        context = self._context(request)
        digests = block_digests(request.all_token_ids[:tokens], context)
        kept: Sequence[int] = handle["remote_block_ids"][0]
        # An engine without this plugin reads nothing from a handle of no tokens, and lets go of the blocks.
        handle["remote_num_tokens"] = 0
        handle["remote_block_ids"] = [kept[:blocks]]
        handle[PROOF] = Proof(context.block_size, tokens, digests).to_wire()
        _compact(handle)
        choice = _CHOICE.fullmatch(identifier)
        lease = self.book.grant(identifier, tuple(kept), tokens, seal(handle), choice[2] if choice else None)
        handle[LEASE] = lease.identifier
        self._sign(handle)
        handle["remote_blocks_expiry_time"] = lease.expiry
        # The book ends the lease, so that no worker lets go of it while a reader is told that it may begin.
        self._reqs_need_send[identifier] = lease.expiry + BACKSTOP_SECONDS
        logger.info("pd-connector: retain request=%s held=%d blocks=%d reason=ok", identifier, tokens, blocks)
        return True, handle

    def _sign(self, handle: dict[str, Any]) -> None:
        if self._engine.secret is not None:
            handle[SIGNATURE] = sign(handle, self._engine.secret)


def _shared_secret(configured: str | None) -> bytes | None:
    """Raises RefusedError: without it the engine would trust what it must not, or be trusted by nobody."""
    try:
        return read_secret(configured)
    except (OSError, ValueError) as error:
        raise RefusedError(f"pd-connector: the engines' secret cannot be read: {error}") from error


def _compact(handle: dict[str, Any]) -> None:
    """Block ids as text; the empty lists that stay say how many groups there are."""
    handle[BLOCKS] = to_wire(handle["remote_block_ids"])
    handle["remote_block_ids"] = [[] for _ in handle[BLOCKS]]


def answer_readers() -> None:
    """Let the handshake listener's socket answer readers. May be called again."""
    for part in _Stock.__mro__:
        module: Any = sys.modules[part.__module__]
        if hasattr(module, "zmq_ctx") and "_nixl_handshake_listener" in vars(part):
            module.zmq_ctx = answering(module.zmq_ctx)
            return
    raise RefusedError("pd-connector: this vLLM serves NIXL's handshake in a way that is not known")
