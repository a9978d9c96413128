"""What operators and their tools read: the page, its data, health, metrics, the API's description."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from toolkit.router.observe.metrics import CONTENT_TYPE as METRICS_TYPE
from toolkit.router.observe.page import page
from toolkit.router.observe.snapshot import CONTENT_TYPE as SNAPSHOT_TYPE
from toolkit.router.observe.snapshot import Snapshots
from toolkit.router.openapi import description
from toolkit.router.request.refusal import Refusal
from toolkit.router.state import RouterState
from toolkit.router.wire.headers import RawHeaders
from toolkit.router.wire.server import Reply, Request

_JSON: RawHeaders = [(b"content-type", b"application/json")]

Answer = tuple[int, RawHeaders, bytes]


class OperatorPages:
    """Answers that need no engine, and no place among the running requests."""

    def __init__(self, state: RouterState, snapshots: Snapshots) -> None:
        self._state = state
        self._snapshots = snapshots
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": lambda: (200, *page()),
            "/health": self._health,
            "/metrics": lambda: (200, _typed(METRICS_TYPE), state.metrics.text()),
            "/openapi.json": lambda: (200, _JSON, description()),
            "/router/state": lambda: (200, _typed(SNAPSHOT_TYPE), snapshots.body()),
        }

    def answer(self, request: Request, reply: Reply) -> bool:
        """Answers at once; False for a URL that is not one of these."""
        make = self._pages.get(request.path)
        if make is None:
            return False
        if request.method not in ("GET", "HEAD"):
            refusal = Refusal(405, f"{request.path} takes GET, not {request.method}.")
            reply.whole(405, [*_JSON, (b"allow", b"GET, HEAD")], refusal.body())
        elif request.path == "/router/state" and not self._may_see(request):
            # Conversations are digests there, but who asks how much is nobody else's business.
            refusal = Refusal(401, "This router needs an API key: Authorization: Bearer KEY.")
            reply.whole(401, [*_JSON, (b"www-authenticate", b"Bearer")], refusal.body())
        else:
            self._state.ledger.settle()
            reply.whole(*make())
        return True

    def _may_see(self, request: Request) -> bool:
        keys = self._state.api_keys
        return keys is None or keys.check(request.headers) is not None

    def _health(self) -> Answer:
        """200 once a prefill and a decode engine take new conversations, else 503; always with every leg."""
        pools = (self._state.prefill, self._state.decode)
        ready = all(pool.ready for pool in pools)
        body: dict[str, object] = {"status": "ok" if ready else "unavailable"}
        for pool in pools:
            body[pool.role] = [
                {"url": leg.url, "healthy": leg.healthy, "draining": leg.draining} for leg in pool.legs
            ]
        return 200 if ready else 503, _JSON, orjson.dumps(body)


def _typed(content_type: str) -> RawHeaders:
    return [(b"content-type", content_type.encode())]
