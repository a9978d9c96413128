"""A router between its start and its end: its parts, and what runs beside the requests."""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from dataclasses import asdict

from toolkit.router.config import RouterConfig
from toolkit.router.fleet.admission import Admission
from toolkit.router.fleet.apikeys import ApiKeys, engine_authorization
from toolkit.router.fleet.health import HealthWatch, health_check
from toolkit.router.fleet.leases import LeaseKeeper
from toolkit.router.fleet.legs import Leg, Pool
from toolkit.router.fleet.members import Members
from toolkit.router.fleet.polling import Polled, Poller
from toolkit.router.fleet.secretfile import read_secret
from toolkit.router.fleet.tls import TlsFiles
from toolkit.router.garbage import GarbageCollector
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.mapfile import MapFile
from toolkit.router.observe.accesslog import AccessLog
from toolkit.router.observe.ledger import Ledger
from toolkit.router.observe.live import Limits as Bounds
from toolkit.router.observe.live import Live
from toolkit.router.observe.metrics import Metrics
from toolkit.router.observe.recent import Recent
from toolkit.router.observe.snapshot import Snapshots, Sources
from toolkit.router.paths.choice import Limits, Path
from toolkit.router.paths.costs import Costs
from toolkit.router.state import RouterState
from toolkit.router.stored import StoredResponses
from toolkit.router.wire.client import EngineClient

# Leases that a last request let go of are still told.
LAST_RELEASES_S = 2.0

_log = logging.getLogger("toolkit.router")


class Running:
    """`async with` it: the engines are watched and the files looked at within the block.

    Raises:
        SettingsError: on making it; a file that the settings name cannot be used.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._map_file = None if config.map_file is None else MapFile.open(config.map_file)
        self._tls = None
        if config.tls_cert is not None and config.tls_key is not None:
            self._tls = TlsFiles(config.tls_cert, config.tls_key)
        self._access_log = AccessLog(config.access_log)
        self._recent = Recent()
        self.state = state = self._build(config)
        polled: list[Polled] = [state.leases]
        polled += [each for each in (self._tls, state.api_keys) if each is not None]
        if config.members is not None:
            members = Members(config.members, state.prefill, state.decode)
            members.load()
            for pool in (state.prefill, state.decode):
                if not pool.legs:
                    _log.warning("%s names no %s engine yet", config.members, pool.role)
            polled.append(members)
        self._garbage = GarbageCollector()
        self._poller = Poller([*polled, self._garbage])
        self.snapshots = Snapshots(Sources(self._live, state.metrics, self._recent))

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self._tls is None else self._tls.context

    async def __aenter__(self) -> Running:
        """Raises SettingsError: the map's file is damaged."""
        if self._map_file is not None:
            self.state.release(self._map_file.restore(self.state.conversations))
            self._keep_restored()
        await self.state.health.start()
        self._garbage.start()
        self._poller.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        state = self.state
        await self._poller.stop()
        self._garbage.stop()
        await state.health.stop()
        await state.leases.drain(LAST_RELEASES_S)
        state.client.close()
        if self._map_file is not None:
            self._map_file.close()
        state.ledger.settle()
        self._access_log.close()

    def _build(self, config: RouterConfig) -> RouterState:
        client = EngineClient(config.connect_timeout_s)
        prefill = Pool("prefill", config.prefill, self._leg_gone)
        decode = Pool("decode", config.decode, self._leg_gone)
        conversations = Conversations(
            ttl_s=config.lease_hold_s or config.ttl_s,
            max_count=config.max_conversations,
            max_bytes=config.max_map_bytes,
            handle_ttl_s=config.ttl_s,
            journal=self._map_file,
        )
        secret = config.lease_secret_file
        leases = LeaseKeeper(
            client,
            None if secret is None else read_secret("--lease-secret-file", secret),
            ttl_s=config.ttl_s,
            hold_s=config.lease_hold_s,
            claims=config.claim,
            on_lost=self._lost,
        )
        admission = Admission(config.max_concurrent, config.max_queue, config.queue_timeout_s)
        api_keys = None if config.api_keys is None else ApiKeys(config.api_keys)
        if api_keys is not None:
            api_keys.load()

        def legs() -> list[Leg]:
            return [*prefill.legs, *decode.legs]

        taken = Bounds(
            running=config.max_concurrent,
            waiting=config.max_queue,
            conversations=config.max_conversations,
            map_bytes=config.max_map_bytes,
        )
        self._live = Live(
            legs,
            conversations,
            admission,
            lambda: admission.running,
            taken,
            lambda: asdict(leases.counts),
        )
        metrics = Metrics(self._live)
        return RouterState(
            config=config,
            client=client,
            prefill=prefill,
            decode=decode,
            health=HealthWatch(
                legs,
                health_check(client, config.health_timeout_s),
                interval_s=config.health_interval_s,
                eject_after=config.eject_after,
                decode_alone=config.decode_alone,
                on_round=lambda: self.state.release(conversations.expire()),
                on_restart=self._restarted,
            ),
            conversations=conversations,
            leases=leases,
            stored=StoredResponses(),
            admission=admission,
            api_keys=api_keys,
            engine_authorization=engine_authorization(
                config.engine_key_file, clients_have_keys=api_keys is not None
            ),
            tenant_secret=secrets.token_bytes(32) if self._map_file is None else self._map_file.secret,
            costs=Costs(),
            limits=Limits(
                config.decode_local_tokens,
                config.decode_local_pending_tokens,
                None if config.path == "auto" else Path(config.path),
            ),
            metrics=metrics,
            ledger=Ledger(metrics.ended, self._recent.add, self._access_log.write),
        )

    def _keep_restored(self) -> None:
        """The blocks outlive the router, so their leases are renewed as if it had never stopped."""
        state, now = self.state, time.monotonic()
        engines: dict[Leg, str] = {}
        for entry in state.conversations.entries():
            handle = entry.held.handle
            leg = state.decode.by_url(entry.held.leg)
            if handle is None or leg is None:
                continue
            engines[leg] = handle.engine
            if handle.lease is not None:
                leg.offers_leases = True
                state.leases.keep(leg, handle.lease, age_s=now - entry.held.saved_at)
        # So that an engine that was restarted meanwhile is noticed by its first handle.
        for leg, engine in engines.items():
            state.health.saw_engine(leg, engine)

    def _restarted(self, leg: Leg) -> None:
        """The leg's engine is another one: what the earlier one held is gone."""
        if leg.role == "decode":
            self.state.conversations.drop_leg(leg.url)
            self.state.leases.forget_leg(leg)

    def _lost(self, leg: Leg, lease: str, _state: str) -> None:
        self.state.conversations.lose(leg.url, lease)

    def _leg_gone(self, leg: Leg) -> None:
        self._restarted(leg)
