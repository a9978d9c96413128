"""The scheduler's half of the connector: proof onto every handle it gives, check of every handle it gets.

vLLM's own NIXL scheduler does the rest; it is handed parameters that `admission` has cut and checked.
"""

from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.logger import init_logger

from pd_connector.admission import Admitted, Engine, admit
from pd_connector.handle import PROOF, READ, Proof
from pd_connector.proof import Context, block_digests, prompt_digest
from pd_connector.versions import require

# vLLM's loggers are configured by name; a name of our own would print nothing.
logger = init_logger("vllm.pd_connector")

# 0.21 has one scheduler under the older name; from 0.24 that name is an alias.
_Stock: Any = getattr(nixl, "NixlPullConnectorScheduler", None) or nixl.NixlConnectorScheduler
_RELIED_ON = (
    "block_size",
    "is_bidirectional_kv_xfer_enabled",
    "use_host_buffer",
    "_is_hma_required",
    "_reqs_in_batch",
    "_reqs_need_send",
    "_reqs_not_processed",
)


class ProvingScheduler(_Stock):  # type: ignore[misc]
    """vLLM's NIXL scheduler that neither offers nor takes blocks without proof of their tokens."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        require(self, _RELIED_ON)
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
        )

    def on_new_request(self, request: Any) -> None:
        """First sight of a request, where vLLM has this hook (from 0.24)."""
        self._admit(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that will come from the other engine, and whether they come while others run."""
        params = self._admit(request)
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
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The decision is final once the request has its blocks; here it is logged."""
        params = self._admit(request)
        if params is not None and num_external_tokens:
            params.read = num_external_tokens
        if params is not None and params.decision is not None:
            decision, params.decision = params.decision, None
            reason = decision.reason
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

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks stay for another engine, and the handle by which it finds them."""
        params = self._admit(request)
        if params is None:
            return False, None
        if not (params["do_remote_decode"] or params["do_remote_prefill"] or params.retain):
            return False, None
        delayed, handle = super().request_finished(request, block_ids)
        if not delayed or handle is None:
            return delayed, handle
        # The last sampled token has no KV yet, and drafts in flight are counted as computed.
        tokens = min(handle["remote_num_tokens"], request.num_tokens - 1)
        if params["do_remote_decode"]:
            self._prove_prompt(request, handle, tokens)
            handle[READ] = params.read
            return delayed, handle
        return self._prove_blocks(request, handle, tokens)

    def _admit(self, request: Any) -> Admitted | None:
        params = request.kv_transfer_params
        if isinstance(params, Admitted):
            return params
        if not isinstance(params, dict) or not params:
            request.kv_transfer_params = None
            return None
        prompt = request.prompt_token_ids
        if prompt is not None and not params.get("do_remote_decode"):
            # With recurrent state prefill leaves the last token to decode, and proves one token less.
            prompt = prompt[: self._pulled_tokens(len(prompt))]
        engine = self._engine
        if getattr(request.sampling_params, "prompt_logprobs", None) is not None:
            # They come from computing the prompt; vLLM 0.29 ends in an overflow where part of it is pulled.
            engine = replace(engine, barred="prompt-logprobs")
        admitted = admit(params, prompt, self._context(request), engine)
        request.kv_transfer_params = admitted
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

    def _prove_prompt(self, request: Any, handle: dict[str, Any], tokens: int) -> None:
        context = self._context(request)
        digest = prompt_digest(request.all_token_ids[:tokens], context)
        handle["remote_num_tokens"] = tokens
        handle[PROOF] = Proof(context.block_size, tokens, digest).to_wire()

    def _prove_blocks(
        self, request: Any, handle: dict[str, Any], tokens: int
    ) -> tuple[bool, dict[str, Any] | None]:
        """Offer whole blocks only; with none to offer, keep none."""
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
        handle["remote_num_tokens"] = tokens
        handle["remote_block_ids"] = [list(handle["remote_block_ids"][0][:blocks])]
        handle[PROOF] = Proof(context.block_size, tokens, digests).to_wire()
        logger.info("pd-connector: retain request=%s held=%d blocks=%d reason=ok", identifier, tokens, blocks)
        return True, handle
