"""Health and leases over real HTTP: the router's client, and the connector's own lease book and checks."""

import asyncio
import importlib
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from toolkit.router.fleet.health import HealthWatch, health_check
from toolkit.router.fleet.leases import LeaseCounts, LeaseKeeper
from toolkit.router.fleet.legs import Pool
from toolkit.router.wire.client import EngineClient
from toolkit.router.wire.server import HttpServer, ServerLimits

pytestmark = pytest.mark.asyncio

SECRET = b"s3cret"
LIMITS = ServerLimits(
    max_body_bytes=1 << 20, header_timeout_s=5, body_stall_s=5, stall_timeout_s=5, max_connections=100
)


class Engine:
    """A decode engine's /health and lease routes, as pd_connector.routes answers them."""

    def __init__(self, connector, secret):
        self.routes = connector("routes")
        self.book = connector("leases").LeaseBook(ttl=480.0)
        self.secret = secret
        self.health = 200
        self.asked = []

    def grant(self):
        number = len(self.book.held())
        return self.book.grant(f"request-{number}", [number], 16, "seal").identifier

    async def __call__(self, request, reply):
        self.asked.append(request.path)
        if request.path == "/health":
            reply.whole(self.health, [], b"")
            return
        authorization = request.headers.get(b"authorization")
        try:
            self.routes.check_client(
                self.secret, authorization.decode() if authorization else None, request.client
            )
            operation = request.path.removeprefix("/pd/leases/")
            leases = self.book.answer(operation, self.routes.read_names(request.body))
            reply.whole(200, [], orjson.dumps({"leases": leases}))
        except self.routes.RefusedRequestError as error:
            reply.whole(error.status, [], orjson.dumps({"error": str(error)}))


@pytest.fixture
def connector(monkeypatch):
    """The connector's modules that need no vLLM, by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "connector" / "src"))
    return lambda name: importlib.import_module(f"pd_connector.{name}")


@asynccontextmanager
async def listening(engine, port=0):
    listener = socket.create_server(("127.0.0.1", port))
    server = HttpServer(engine, LIMITS)
    await server.start(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        await server.drain(0)


@asynccontextmanager
async def calling():
    client = EngineClient(connect_timeout_s=5)
    try:
        yield client
    finally:
        client.close()
        await asyncio.sleep(0)


async def test_leases_are_claimed_renewed_and_released_in_the_engines_own_book(connector, clock):
    engine = Engine(connector, SECRET)
    lost = []
    async with listening(engine) as port, calling() as client:
        leg = Pool("decode", [f"http://127.0.0.1:{port}"]).legs[0]
        keeper = LeaseKeeper(
            client, SECRET, ttl_s=400, hold_s=3600, on_lost=lambda *what: lost.append(what), clock=clock
        )
        names = [engine.grant() for _ in range(1500)]
        for name in names:
            keeper.keep(leg, name)
        clock.now += 200
        keeper.poll()
        await keeper.drain(10)
        assert engine.book.summary()["renewed"] == 1500
        keeper.claim(leg, names[0])
        keeper.claim(leg, "a-lease-of-an-earlier-life")
        keeper.release(leg, *names[1:])
        await keeper.drain(10)
    summary = engine.book.summary()
    assert (summary["claimed"], summary["released"], summary["held"]) == (1, 1499, 1)
    assert lost == [(leg, "a-lease-of-an-earlier-life", "unknown")]
    assert keeper.counts == LeaseCounts(claimed=1, refused=1, released=1499, renewed=1500)
    assert len(engine.asked) == 2 + 1 + 2, "1,024 names in a request"


@pytest.mark.parametrize(("theirs", "ours"), [(SECRET, None), (SECRET, b"another")])
async def test_a_wrong_secret_is_told_once(connector, caplog, theirs, ours):
    engine = Engine(connector, theirs)
    async with listening(engine) as port, calling() as client:
        leg = Pool("decode", [f"http://127.0.0.1:{port}"]).legs[0]
        keeper = LeaseKeeper(client, ours, ttl_s=400)
        for _ in range(3):
            keeper.release(leg, engine.grant())
            await keeper.drain(10)
    assert engine.asked == ["/pd/leases/release"]
    assert engine.book.summary()["released"] == 0
    [record] = caplog.records
    assert "answered 401" in record.getMessage()
    assert "another" not in record.getMessage()


async def test_engines_of_this_machine_need_no_secret(connector):
    engine = Engine(connector, None)
    async with listening(engine) as port, calling() as client:
        leg = Pool("decode", [f"http://127.0.0.1:{port}"]).legs[0]
        keeper = LeaseKeeper(client, None, ttl_s=400)
        keeper.release(leg, engine.grant())
        await keeper.drain(10)
    assert keeper.counts == LeaseCounts(released=1)


async def test_an_engine_that_stops_gets_no_traffic_until_it_is_back(connector):
    engine = Engine(connector, None)
    async with calling() as client:
        async with listening(engine) as port:
            legs = Pool("decode", [f"http://127.0.0.1:{port}"])
            watch = HealthWatch(lambda: legs.legs, health_check(client, 5), interval_s=1e6, eject_after=2)

            async def check():
                await watch.start()
                await watch.stop()
                return legs.ready

            assert await check()
            engine.health = 503
            assert await check(), "once is not enough"
            assert not await check()
            engine.health = 200
            assert await check()
        assert not await check(), "a refused connection is enough"
        async with listening(engine, port):
            assert await check()
            assert legs.legs[0].returns == 3
