"""The parts that all requests of one router share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from toolkit.router.config import RouterConfig
from toolkit.router.fleet.admission import Admission
from toolkit.router.fleet.apikeys import ApiKeys
from toolkit.router.fleet.health import HealthWatch
from toolkit.router.fleet.leases import LeaseKeeper
from toolkit.router.fleet.legs import Leg, Pool
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.records import Held, Released
from toolkit.router.observe.ledger import Ledger
from toolkit.router.observe.metrics import Metrics
from toolkit.router.observe.record import RequestRecord
from toolkit.router.paths.choice import Limits
from toolkit.router.paths.costs import Costs
from toolkit.router.request.identity import Keys
from toolkit.router.request.refusal import Refusal
from toolkit.router.stored import StoredResponses
from toolkit.router.wire.client import EngineClient, EngineFailed


@dataclass(slots=True)
class RouterState:
    """Made once from the settings; lives as long as the process.

    engine_authorization: the engines' own credential; empty: none; None: what the client sent.
    """

    config: RouterConfig
    client: EngineClient
    prefill: Pool
    decode: Pool
    health: HealthWatch
    conversations: Conversations
    leases: LeaseKeeper
    stored: StoredResponses
    admission: Admission
    api_keys: ApiKeys | None
    engine_authorization: bytes | None
    tenant_secret: bytes
    costs: Costs
    limits: Limits
    metrics: Metrics
    ledger: Ledger

    def save(self, keys: Keys, leg: Leg, held: Held) -> None:
        """Notes what `leg` holds of a conversation now. What the new handle covers, decode may free."""
        lease = None if held.handle is None else held.handle.lease
        if self.decode.by_url(leg.url) is not leg:
            # It was removed while it answered: no later turn goes there.
            if lease is not None:
                self.leases.release(leg, lease)
            return
        if lease is not None:
            leg.offers_leases = True
            self.leases.keep(leg, lease)
        self.release(self.conversations.save(keys, held))

    def release(self, superseded: Iterable[Released]) -> None:
        """Leases that no later turn can name."""
        for one in superseded:
            leg = self.decode.by_url(one.leg)
            if leg is not None:
                self.leases.release(leg, one.lease)

    def failed(self, failure: EngineFailed, record: RequestRecord) -> None:
        """An engine gave a request no usable answer."""
        record.failures.append(str(failure))
        self.metrics.engine_failed(failure)
        self.health.failed(failure.leg)

    def keeper(self, tenant: bytes, response_id: str, param: str | None = None) -> Leg:
        """The decode engine that has a stored response. Raises Refusal, which names `param`."""
        url = self.stored.leg_of(tenant, response_id)
        leg = None if url is None else self.decode.by_url(url)
        if leg is None:
            message = "This router knows no such response of yours (any more): send the whole conversation."
            raise Refusal(404, message, param=param)
        if not leg.healthy:
            message = "The engine that keeps the response is away. Try again later."
            raise Refusal(503, message, param=param, retry_after_s=2)
        return leg
