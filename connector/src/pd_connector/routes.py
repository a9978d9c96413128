"""HTTP routes of the engine for the owner of its leases, usually a router.

POST /pd/leases/renew, /claim, /release with {"leases": [name, ...]}: an answer per lease.
GET /pd/leases: the counts. All are for loopback clients, or for who knows the shared secret.
"""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any

from pd_connector.handle import MOST_LEASE_NAME, MOST_LEASES
from pd_connector.secretfile import SECRET_FILE, SECRET_FILE_KEY, read_secret

MOST_BYTES = 128 * 1024
OPERATIONS = ("renew", "claim", "release")
UTILITY = "pd_connector_leases"
"""The name under which the engine's core offers `NixlConnector.leases`."""


class RefusedRequestError(Exception):
    """The request gets this status and this text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def check_client(secret: bytes | None, authorization: str | None, host: str | None) -> None:
    """Raises RefusedRequestError unless the client may ask."""
    if secret is None:
        if not _is_loopback(host):
            raise RefusedRequestError(403, f"no secret is configured ({SECRET_FILE}): loopback clients only")
        return
    kind, _, given = (authorization or "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), secret):
        raise RefusedRequestError(401, "the lease secret is missing or wrong")


def read_names(body: bytes) -> list[str]:
    """The leases that a body names; raises RefusedRequestError."""
    if len(body) > MOST_BYTES:
        raise RefusedRequestError(413, f"more than {MOST_BYTES} bytes")
    try:
        names = json.loads(body)["leases"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedRequestError(400, 'the body must be {"leases": ["...", ...]}') from None
    if not isinstance(names, list) or len(names) > MOST_LEASES:
        raise RefusedRequestError(400, f'"leases" must be a list of at most {MOST_LEASES} names')
    if not all(isinstance(name, str) and 0 < len(name) <= MOST_LEASE_NAME for name in names):
        raise RefusedRequestError(400, f"a lease's name is a text of at most {MOST_LEASE_NAME} characters")
    return names


def merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer of several data-parallel engines, of which one at most knows a lease."""
    merged: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            if isinstance(value, int):
                merged[name] = merged.get(name, 0) + value
            elif name not in merged or value.get("state") != "unknown":
                merged[name] = value
    return merged


def install(router: Any, logger: Logger) -> None:
    """Add the routes to an APIRouter that vLLM's server includes. May be called again."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    if any(getattr(route, "path", "").startswith("/pd/leases") for route in router.routes):
        return

    async def guarded(request: Request, step: Callable[[Any], Awaitable[dict[str, Any]]]) -> JSONResponse:
        try:
            check_client(_secret(request.app), request.headers.get("authorization"), _host(request))
            return JSONResponse(await step(request))
        except RefusedRequestError as error:
            return JSONResponse({"error": str(error)}, error.status)

    def answer(operation: str) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def step(request: Request) -> dict[str, Any]:
            names = read_names(await _limited_body(request))
            return {"leases": await _ask_engines(request.app, operation, names)}

        async def route(request: Request) -> JSONResponse:
            return await guarded(request, step)

        return route

    async def counts(request: Request) -> JSONResponse:
        async def step(request: Request) -> dict[str, Any]:
            return await _ask_engines(request.app, "summary", [])

        return await guarded(request, step)

    for operation in OPERATIONS:
        router.add_api_route(f"/pd/leases/{operation}", answer(operation), methods=["POST"], name=operation)
    router.add_api_route("/pd/leases", counts, methods=["GET"], name="leases")
    logger.info("pd-connector: routes: POST /pd/leases/{%s}, GET /pd/leases", ",".join(OPERATIONS))


def add_utility(core: Any) -> None:
    """Give the class EngineCore the method that the routes call. May be called again."""

    def leases(self: Any, operation: str, names: list[str]) -> dict[str, Any]:
        ask = getattr(self.scheduler.get_kv_connector(), "leases", None)
        return {} if ask is None else ask(operation, names)

    setattr(core, UTILITY, leases)


async def _limited_body(request: Any) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            break
    return body


async def _ask_engines(app: Any, operation: str, names: list[str]) -> dict[str, Any]:
    core = getattr(getattr(app.state, "engine_client", None), "engine_core", None)
    if core is None:
        raise RefusedRequestError(503, "this server has no engine")
    engines = getattr(core, "core_engines", None) or []
    if len(engines) < 2:
        answers = [await core.call_utility_async(UTILITY, operation, names)]
    else:
        # `call_utility_async` asks all, but gives only the first one's answer.
        answers = [
            await core._call_utility_async(UTILITY, operation, names, engine=engine) for engine in engines
        ]
    return merge(answers)


def _secret(app: Any) -> bytes | None:
    if not hasattr(app.state, "pd_lease_secret"):
        config = getattr(getattr(app.state, "vllm_config", None), "kv_transfer_config", None)
        extra = getattr(config, "kv_connector_extra_config", None) or {}
        try:
            app.state.pd_lease_secret = read_secret(extra.get(SECRET_FILE_KEY))
        except (OSError, ValueError) as error:
            raise RefusedRequestError(503, f"the lease secret cannot be read: {error}") from error
    secret: bytes | None = app.state.pd_lease_secret
    return secret


def _host(request: Any) -> str | None:
    return request.client.host if request.client else None


def _is_loopback(host: str | None) -> bool:
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
