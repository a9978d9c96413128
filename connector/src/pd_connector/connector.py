"""What vLLM builds from `"kv_connector":"NixlConnector","kv_connector_module_path":"pd_connector.connector"`.

The class bears the stock name because vLLM keys some of its checks on it, and so that the published
command line keeps its words. Without this distribution the module path is an import error at start.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.platforms import current_platform

from pd_connector import plugin, progress, versions
from pd_connector.scheduler import ProvingScheduler, logger


class NixlConnector(nixl.NixlConnector):  # type: ignore[misc]
    """The pull connector of vLLM with our scheduler half."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        plugin.require_registered()
        if role == KVConnectorRole.WORKER and current_platform.is_cpu():
            # On a GPU machine polling is what keeps transfers quick, and there are cores to spare.
            progress.let_sleep(logger)
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = ProvingScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            versions.require(self.connector_worker, ["_reqs_to_send"])

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """As vLLM does, then order what waits to be fetched by its deadline.

        The worker releases expired blocks from the front and stops at the first that is not; one entry
        renewed or with a longer life would hold up all behind it.
        """
        super().start_load_kv(forward_context, **kwargs)
        worker = self.connector_worker
        if len(worker._reqs_to_send) > 1:
            worker._reqs_to_send = dict(sorted(worker._reqs_to_send.items(), key=lambda entry: entry[1]))
