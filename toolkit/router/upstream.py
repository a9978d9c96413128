"""HTTP to the engines: one client session, and every way an engine can fail told as one exception."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.payload import Payload

from toolkit.router.config import RouterConfig
from toolkit.router.engines import Leg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp.abc import AbstractStreamWriter

# The engines' uvicorn closes an idle connection after 5 s; reusing one later would race with that.
KEEPALIVE_S = 3.0


class EngineFailed(Exception):
    """An engine gave no usable answer.

    Attributes:
        leg: which one. why: a few words, without body or credential.
        sent: whether the engine may have seen the request.
        status: the HTTP status that it answered, if it did.
    """

    def __init__(self, leg: Leg, why: str, *, sent: bool = True, status: int | None = None) -> None:
        super().__init__(f"{leg.role} {leg.url} {why}")
        self.leg = leg
        self.why = why
        self.sent = sent
        self.status = status


class SendMark:
    """Knows whether a request is wholly on its way, and runs one callback from then on."""

    def __init__(self) -> None:
        self._sent = False
        self._then: Callable[[], object] | None = None

    def mark(self) -> None:
        self._sent = True
        if self._then is not None:
            self._then()

    def when_sent(self, then: Callable[[], object]) -> None:
        """Calls `then` now if the request was sent, else as soon as it is."""
        if self._sent:
            then()
        else:
            self._then = then


class _JsonBody(Payload):
    """A request body that marks when its last byte was handed to the transport."""

    def __init__(self, value: bytes, mark: SendMark | None) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self._mark = mark

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        if self._mark is not None:
            self._mark.mark()


class Upstream:
    """The client side of the router. `async with` it; one per router."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            skip_auto_headers=("User-Agent", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._live.close()

    @property
    def _live(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("Upstream is used outside its context")
        return self._session

    @asynccontextmanager
    async def whole(
        self, leg: Leg, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request whose answer comes at once; bounded by the prefill timeout in all.

        Raises:
            EngineFailed: from here or from reading within the block.
        """
        timeout = aiohttp.ClientTimeout(
            total=self._config.prefill_timeout_s, sock_connect=self._config.connect_timeout_s
        )
        data = None if body is None else _JsonBody(body, None)
        with engine_failures(leg):
            async with self._live.request(
                method, leg.url + path, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                yield response

    async def open(
        self,
        leg: Leg,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        mark: SendMark,
        silence_s: float,
    ) -> aiohttp.ClientResponse:
        """A request whose answer may stream for hours; bounded only in silence. The caller closes it.

        Raises:
            EngineFailed: no status line came.
        """
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._config.connect_timeout_s,
            sock_read=silence_s,
        )
        with engine_failures(leg):
            return await self._live.post(
                leg.url + path,
                data=_JsonBody(body, mark),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )

    async def is_healthy(self, leg: Leg) -> bool:
        """Whether GET /health answers 200 in time."""
        timeout = aiohttp.ClientTimeout(total=self._config.health_timeout_s)
        url = leg.url + "/health"
        try:
            async with self._live.get(url, timeout=timeout, allow_redirects=False) as response:
                await response.read()
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


@contextmanager
def engine_failures(leg: Leg) -> Iterator[None]:
    """Turns what aiohttp raises into EngineFailed; a leg that refuses connections is ejected."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        leg.eject()
        raise EngineFailed(leg, "cannot be reached", sent=False) from error
    except TimeoutError as error:
        raise EngineFailed(leg, "did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineFailed(leg, "broke the connection") from error
