"""What vLLM builds from `"kv_connector":"NixlConnector","kv_connector_module_path":"pd_connector.connector"`.

The class bears the stock name because vLLM keys some of its checks on it, and so that the published
command line keeps its words. Without this distribution the module path is an import error at start.
"""

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.platforms import current_platform

from pd_connector import idle, metrics, plugin, progress, versions
from pd_connector.asker import Asker
from pd_connector.peers import watch_handshakes
from pd_connector.reads import Gate, set_deadlines
from pd_connector.scheduler import ProvingScheduler, answer_readers, logger


class NixlConnector(nixl.NixlConnector):  # type: ignore[misc]
    """The pull connector of vLLM with our scheduler half, and a gate before the worker's reads."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        plugin.require_registered()
        if role == KVConnectorRole.WORKER and current_platform.is_cpu():
            # On a GPU machine polling is what keeps transfers quick, and there are cores to spare.
            progress.let_sleep(logger)
        super().__init__(vllm_config, role, kv_cache_config)
        self.naps = idle.Naps()
        self.resting = False
        if role == KVConnectorRole.SCHEDULER:
            answer_readers()
            self.connector_scheduler = ProvingScheduler(vllm_config, self.engine_id, kv_cache_config)
            self._tally = metrics.Tally(self.connector_scheduler.book, self.connector_scheduler.threshold)
        else:
            worker = self.connector_worker
            versions.require(
                worker,
                [
                    "_reqs_to_send",
                    "_recving_metadata",
                    "_remote_agents",
                    "_pop_done_transfers",
                    "_nixl_handshake",
                    "_read_blocks_for_req",
                    "_handle_failed_transfer",
                ],
            )
            worker.xfer_stats = metrics.Stats()
            self._asker = Asker()
            self._gate = Gate(worker, self._asker, watch_handshakes(worker))

    # The scheduler's process.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """vLLM gives its block pool to a connector that wants it."""
        self.connector_scheduler.watch_pool(gpu_block_pool)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """The step's message to the workers."""
        meta = super().build_connector_meta(scheduler_output)
        # A step with work ends the rest, whatever was decided before it.
        meta.pd_resting = self.resting and not scheduler_output.total_num_scheduled_tokens
        return meta

    def has_pending_block_frees(self) -> bool:
        """Will leases make room, so that no running request need be preempted?"""
        return bool(self.connector_scheduler.has_pending_block_frees())

    def only_holds(self) -> bool:
        """For `idle`: may the engine sleep?"""
        return bool(self.connector_scheduler.only_holds())

    def seconds_to_next_end(self) -> float | None:
        """For `idle`: when a lease ends that nobody renews."""
        deadline = self.connector_scheduler.book.next_deadline()
        return None if deadline is None else deadline - time.perf_counter()

    def let_go_of_all(self) -> None:
        """For `idle`: the engine shuts down; nobody will come for the blocks."""
        book = self.connector_scheduler.book
        book.give_up(sum(len(lease.blocks) for lease in book.held()) + 1, len)

    def leases(self, operation: str, names: list[str]) -> dict[str, Any]:
        """For `routes`: renew, claim or release leases, or `summary`."""
        book = self.connector_scheduler.book
        return book.summary() if operation == "summary" else book.answer(operation, names)

    # The workers' processes.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """As vLLM does, with the reads that their holders agree to."""
        meta = self._connector_metadata
        self._gate.admit(meta.reqs_to_recv, getattr(meta, "pd_questions", {}))
        super().start_load_kv(forward_context, **kwargs)
        set_deadlines(
            self.connector_worker, getattr(meta, "pd_deadlines", {}), getattr(meta, "pd_clock", 0.0)
        )
        idle.worker_rest.resting = getattr(meta, "pd_resting", False)

    def shutdown(self) -> None:
        """Nothing is asked any more."""
        asker = self._asker if self.connector_scheduler is None else self.connector_scheduler.asker
        asker.close()
        super().shutdown()

    # Metrics: of the scheduler and the workers on their way to the server, and there.

    def get_kv_connector_stats(self) -> Any:
        """What was counted since the last call."""
        if self.connector_worker is None:
            return self._tally.since_last()
        return super().get_kv_connector_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return metrics.Stats(data=data) if data is not None else metrics.Stats()

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> Any:
        return metrics.PromMetrics(*args, **kwargs)
