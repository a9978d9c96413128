"""Where vLLM enters: the `vllm.general_plugins` entry point, called once in every process of an engine."""

import os
from typing import Any

from pd_connector import versions

_registered = False


def register() -> None:
    """Check the version, wrap streaming, and take over the name `NixlConnector`.

    vLLM does not catch what this raises, so a refusal (`versions.RefusedError`) stops the engine at start.
    """
    global _registered
    import vllm
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.logger import init_logger

    logger = init_logger("vllm.pd_connector")
    warning = versions.check(vllm.__version__, os.environ)
    if warning and not _registered:
        logger.warning("pd-connector: %s", warning)

    from vllm.engine.arg_utils import EngineArgs

    from pd_connector import door, engineconfig, idle, routes, streaming

    streaming.install(logger)
    engineconfig.install(EngineArgs, logger)
    routes.install(_server_router(), logger)
    door.install(*_input_processor(), logger)
    _prepare_core(logger)
    idle.worker_rest.install(_spin_condition())
    # The stock classes pull without proof; whoever leaves out the module path still gets ours.
    for name in ("NixlConnector", "NixlPullConnector"):
        if name in KVConnectorFactory._registry:
            KVConnectorFactory._registry[name] = _connector_class
    _registered = True


def require_registered() -> None:
    """Raises RefusedError where the engine builds our connector without having loaded the plugin."""
    if not _registered:
        raise versions.RefusedError(
            "pd-connector: its connector was configured but its vLLM plugin was not loaded, so streams would "
            "carry no KV handle. Add pd_connector to VLLM_PLUGINS, or unset VLLM_PLUGINS."
        )


def _prepare_core(logger: Any) -> None:
    from vllm.v1.engine.core import EngineCore, EngineCoreProc

    from pd_connector import idle, routes

    routes.add_utility(EngineCore)
    idle.install(EngineCoreProc, logger)


def _server_router() -> Any:
    """Any router that vLLM's server always includes: routes added to it before are included with it.

    vLLM's own `vllm.endpoint_plugins` would need VLLM_PLUGINS set by everybody, and exist only from 0.29 on.
    """
    from vllm.entrypoints.serve.instrumentator.health import router

    return router


def _input_processor() -> tuple[Any, type[Exception]]:
    """The class that takes requests in, and the error that the server answers with 400."""
    from vllm import exceptions
    from vllm.v1.engine.input_processor import InputProcessor

    return InputProcessor, getattr(exceptions, "VLLMValidationError", ValueError)


def _spin_condition() -> Any:
    from vllm.distributed.device_communicators import shm_broadcast

    return getattr(shm_broadcast, "SpinCondition", None)


def _connector_class() -> type:
    from pd_connector.connector import NixlConnector

    return NixlConnector
