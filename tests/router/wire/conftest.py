"""Real sockets on both event loops; whatever reaches a loop's exception handler fails the test."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from toolkit.router.wire.client import EngineClient
from toolkit.router.wire.origin import Origin
from toolkit.router.wire.server import HttpServer, ServerLimits

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
PATIENCE_S = 20.0
LIMITS = {
    "max_body_bytes": 1 << 20,
    "max_header_bytes": 16384,
    "header_timeout_s": 10.0,
    "body_stall_s": 10.0,
    "keepalive_s": 10.0,
    "stall_timeout_s": 10.0,
    "max_connections": 1000,
}


def runner_of(loop_name):
    def run(main):
        faults = []
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
            result = runner.run(asyncio.wait_for(main, PATIENCE_S))
            # What a closed connection still has to say is said before the loop ends.
            runner.run(asyncio.sleep(0.01))
        assert faults == []
        return result

    return run


@pytest.fixture(params=LOOPS)
def run(request):
    """`run(coroutine)` on each kind of loop; fails when an exception reached the loop."""
    return runner_of(request.param)


@pytest.fixture
def run_once():
    """`run_once(coroutine)` on uvloop, which is what serves."""
    return runner_of("uvloop")


async def until(condition):
    """Waits until the condition holds."""
    async with asyncio.timeout(PATIENCE_S / 2):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture(name="until")
def _until():
    return until


class Wire:
    """A raw connection to a server."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, data):
        self.writer.write(data)

    async def send_all(self, data):
        if self.writer.transport.is_closing():
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def line(self):
        return await self.reader.readline()

    async def head(self):
        """Status and headers of an answer, names in lower case."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines)

    async def answer(self):
        """Status, headers and body of a framed answer."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self.chunks()
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def chunks(self):
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readline() == b"\r\n"
        return body

    async def rest(self):
        return await self.reader.read()

    def half_close(self):
        self.writer.write_eof()

    def leave(self):
        self.writer.close()

    def reset(self):
        """Leaves with a RST instead of a FIN."""
        linger = b"\1\0\0\0\0\0\0\0"
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


@dataclass
class Served:
    server: HttpServer
    port: int
    tls: ssl.SSLContext | None = None
    wires: list = field(default_factory=list)

    async def connect(self, **options):
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, **options))
        self.wires.append(wire)
        return wire

    async def ask(self, data):
        """Sends bytes on a new connection and reads until the server closes it."""
        wire = await self.connect()
        wire.send(data)
        answer = await wire.rest()
        wire.leave()
        return answer


@contextlib.asynccontextmanager
async def serving(handler, *, tls=None, trust=None, **limits):
    """A server for a `with` block; afterwards every client leaves, and nothing may be left of any."""
    server = HttpServer(handler, ServerLimits(**{**LIMITS, **limits}))
    listener = socket.create_server(("127.0.0.1", 0))
    served = Served(server, listener.getsockname()[1], trust)
    await server.start(listener, tls)
    try:
        yield served
    finally:
        server.stop_accepting()
        for wire in served.wires:
            wire.leave()
        try:
            await until(lambda: server.running == server.connections == 0)
        finally:
            # A test that fails must not leave sockets behind: its loop would not close.
            await server.drain(0)


@pytest.fixture(name="serving")
def _serving():
    return serving


class Leg:
    """An engine as the client sees it."""

    def __init__(self, url, role="decode"):
        self.role = role
        self.url = url
        self.origin = Origin.parse(url)
        self.ejected = 0

    def eject(self):
        self.ejected += 1


@pytest.fixture(name="leg_of")
def _leg_of():
    return Leg


class Engine:
    """A raw server: `script(wire)` runs for each connection; a request is read with `request(wire)`."""

    def __init__(self, script):
        self._script = script
        self.wires = []
        self.heads = []
        self.left = 0

    async def accept(self, reader, writer):
        wire = Wire(reader, writer)
        self.wires.append(wire)
        try:
            await self._script(self, wire)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            wire.leave()

    async def request(self, wire):
        """The body of the next request; its head is kept."""
        head = await wire.reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lines = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
        return await wire.reader.readexactly(int(lines.get(b"content-length", 0)))

    async def until_left(self, wire):
        """Waits for the other side to close its connection."""
        with contextlib.suppress(ConnectionError):
            assert await wire.reader.read() == b""
        self.left += 1


@contextlib.asynccontextmanager
async def engine(script, *, host="127.0.0.1", tls=None, tls_trust=None, **client_options):
    """A fake engine and a client for it: gives (engine, leg, client)."""
    fake = Engine(script)
    server = await asyncio.start_server(fake.accept, host, 0, ssl=tls, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    client = EngineClient(**{"connect_timeout_s": 5.0, "tls": tls_trust, **client_options})
    shown = f"[{host}]" if ":" in host else host
    leg = Leg(f"{'https' if tls else 'http'}://{shown}:{port}")
    try:
        yield fake, leg, client
    finally:
        client.close()
        await until(lambda: client.connections == 0)
        server.close()
        for wire in fake.wires:
            wire.writer.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture(name="engine")
def _engine():
    return engine


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(server context, client context) for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wire")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=str(path))
