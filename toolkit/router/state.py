"""The parts that all requests of one router share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from toolkit.router.accesslog import AccessLog
from toolkit.router.config import RouterConfig
from toolkit.router.conversations import Conversations
from toolkit.router.engines import HealthWatch, Pool
from toolkit.router.inflight import InFlight
from toolkit.router.metrics import Metrics
from toolkit.router.record import RequestRecord
from toolkit.router.upstream import Upstream


@dataclass(frozen=True, slots=True)
class RouterState:
    """Made once from the settings; lives as long as the process."""

    config: RouterConfig
    conversations: Conversations
    prefill: Pool
    decode: Pool
    upstream: Upstream
    metrics: Metrics
    access_log: AccessLog
    in_flight: InFlight

    @classmethod
    def build(cls, config: RouterConfig) -> RouterState:
        """Raises SettingsError when the access log cannot be written."""
        conversations = Conversations(
            ttl_s=config.ttl_s, max_count=config.max_conversations, max_bytes=config.max_map_bytes
        )
        prefill, decode = Pool("prefill", config.prefill), Pool("decode", config.decode)
        in_flight = InFlight()
        return cls(
            config=config,
            conversations=conversations,
            prefill=prefill,
            decode=decode,
            upstream=Upstream(config),
            metrics=Metrics(conversations, (*prefill.legs, *decode.legs), in_flight),
            access_log=AccessLog(config.access_log),
            in_flight=in_flight,
        )

    def health_watch(self) -> HealthWatch:
        """Checks every leg; each round also drops handles that have grown too old."""
        return HealthWatch(
            (*self.prefill.legs, *self.decode.legs),
            self.upstream.is_healthy,
            interval_s=self.config.health_interval_s,
            eject_after=self.config.eject_after,
            on_round=lambda: self.conversations.expire(time.monotonic()),
        )

    def ended(self, record: RequestRecord) -> None:
        """The one place where a finished request is counted and logged."""
        record.total_ms = (time.monotonic() - record.started) * 1000
        self.metrics.ended(record)
        self.access_log.write(record)
