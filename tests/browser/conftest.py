"""A headless Chromium, and a stand-in for the router that serves the real page over canned state.

The tests only use `Stand`: a real router behind the same members makes them tests of the whole.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from toolkit.router.observe.live import Limits, Live
from toolkit.router.observe.metrics import Metrics
from toolkit.router.observe.page import page
from toolkit.router.observe.recent import Recent
from toolkit.router.observe.record import RequestRecord
from toolkit.router.observe.snapshot import CONTENT_TYPE, Snapshots, Sources
from toolkit.router.paths.choice import Path, Reason

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


class Tab:
    """One page in the browser."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def js(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it is true: some polls of the page."""
        WebDriverWait(self.driver, 15, poll_frequency=0.05).until(lambda _: condition())

    def wait_for_status(self, text: str) -> None:
        WebDriverWait(self.driver, 15, poll_frequency=0.05).until(
            lambda _: self.text("#status") == text, f"the status did not become {text!r}"
        )

    def resize(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """As a phone below 600 px. Chromium itself makes no window that narrow."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def console_errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requested(self) -> list[str]:
        """Every URL that was asked for since the last call, the browser's own data: and such aside."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if urlsplit(url).scheme not in ("data", "about", "chrome")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with Chrome(options, Service(chromedriver)) as chrome:
        yield chrome


@pytest.fixture
def tab(driver: Chrome) -> Iterator[Tab]:
    tab = Tab(driver)
    tab.resize(1280)
    yield tab
    # Ends the polls, and lets the next test see only its own.
    tab.open("about:blank")
    tab.requested()
    tab.console_errors()


@pytest.fixture
def stand() -> Iterator[Stand]:
    """What the page is opened from. It has ended some hundred requests, and its four engines are healthy."""
    stand = Stand()
    stand.fill()
    stand.start()
    yield stand
    stand.stop()


@dataclass
class FakeLeg:
    role: str
    url: str
    healthy: bool = True
    draining: bool = False
    in_flight: int = 0
    pending_tokens: int = 0


@dataclass
class Places:
    running: int = 21
    waiting: int = 0


@dataclass
class KeptConversations:
    bytes: int = 9_650_000
    events: Counter[str] = field(
        default_factory=lambda: Counter(
            saved=9214, replaced=7102, hit=6911, miss=2480, expired=201, evicted=0, returned=3, dropped=65
        )
    )

    def __len__(self) -> int:
        return 1843


class Stand:
    """What the page is served from: a router's state under the test's control, over real HTTP."""

    def __init__(self) -> None:
        self.legs = [
            FakeLeg("prefill", "http://10.0.1.11:8100", in_flight=6),
            FakeLeg("prefill", "http://10.0.1.12:8100", in_flight=5),
            FakeLeg("decode", "http://10.0.2.21:8200", in_flight=12, pending_tokens=318),
            FakeLeg("decode", "http://10.0.2.22:8200", in_flight=9),
        ]
        self.places = Places()
        self.key: str | None = None
        # Answers instead of the state: (status, body).
        self.instead: tuple[int, bytes] | None = None
        self.prefix = ""
        self.requests_seen: list[str] = []
        live = Live(
            legs=lambda: self.legs,
            conversations=KeptConversations(),
            admission=self.places,
            in_flight=lambda: self.places.running + 2,
            limits=Limits(running=256, waiting=1024, conversations=100_000, map_bytes=256 << 20),
            leases=lambda: {"claimed": 6870, "released": 1204, "renewed": 330, "lost": 12},
        )
        self._clock = time() - 400
        self.sources = Sources(live, Metrics(live), Recent())
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{self.prefix}/"

    def start(self) -> None:
        """Serves; after `stop` at the same address again."""
        handler = type("Handler", (_Handler,), {"stand": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def end_request(self, **fields: object) -> None:
        """A request ends now, as the router would record it."""
        record = RequestRecord(f"r{self._clock:.3f}", 0.0)
        for name, value in fields.items():
            setattr(record, name, value)
        record.end((record.total_ms or 500.0) / 1000, self._clock)
        self._clock = min(self._clock + 1.1, time())
        self.sources.metrics.ended(record)
        self.sources.recent.add(record)

    def fill(self, count: int = 360) -> None:
        """Ends `count` requests as an agent's day brings them."""
        chance = random.Random(7)
        for number in range(count):
            self.end_request(**_plausible(chance, number))


def _plausible(chance: random.Random, number: int) -> dict[str, object]:
    path = chance.choices([Path.READBACK, Path.PREFILL, Path.DECODE_LOCAL], [66, 24, 10])[0]
    centre = {"readback": 170.0, "prefill": 1450.0, "decode-local": 95.0}[path]
    prefill_ms = centre * math.exp(chance.gauss(0, 0.55))
    prompt = int(chance.triangular(1200, 48_000, 9000))
    read = {"readback": prompt - chance.randrange(20, 900), "prefill": 0}.get(path)
    if path == "readback" and chance.random() < 0.06:
        read = 0
    reasons = {
        "readback": [Reason.LONG_SUFFIX] * 5 + [Reason.DECODE_BUSY],
        "prefill": [Reason.NEW] * 5 + [Reason.DECODE_AWAY],
        "decode-local": [Reason.SHORT_SUFFIX] * 4 + [Reason.NOT_TRANSFERABLE],
    }
    ttft = prefill_ms + chance.uniform(25, 70)
    outcome, status = chance.choices(
        [("ok", 200), ("client-gone", 200), ("refused", 429), ("decode-broke", 200)], [960, 18, 12, 3]
    )[0]
    return {
        "route": chance.choice(
            ["/v1/chat/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
        ),
        "conversation": b"conversation-%d" % (number % 37),
        "identity": "explicit",
        "stream": True,
        "path": path if status == 200 else None,
        "reason": chance.choice(reasons[path]) if status == 200 else None,
        "offered": path == "readback",
        "declined": "fewer tokens than a read is worth" if read == 0 and path == "readback" else None,
        "prefill_ms": None if path == "decode-local" or status != 200 else prefill_ms,
        "ttft_ms": ttft if status == 200 else None,
        "total_ms": ttft + chance.uniform(800, 9000) if status == 200 else 0.4,
        "prompt_tokens": prompt if status == 200 else None,
        "kv_read_tokens": read if status == 200 else None,
        "status": status,
        "outcome": outcome,
    }


class _Handler(BaseHTTPRequestHandler):
    stand: Stand

    def do_GET(self) -> None:
        stand = self.stand
        stand.requests_seen.append(self.path)
        path = self.path.removeprefix(stand.prefix)
        if path in ("", "/"):
            headers, body = page()
            self._answer(200, {name.decode(): value.decode() for name, value in headers}, body)
        elif path != "/router/state":
            self._answer(404, {}, b"")
        elif stand.key is not None and self.headers.get("Authorization") != f"Bearer {stand.key}":
            self._answer(401, {"content-type": CONTENT_TYPE}, b'{"error": {"message": "no key"}}')
        elif stand.instead is not None:
            self._answer(stand.instead[0], {}, stand.instead[1])
        else:
            self._answer(200, {"content-type": CONTENT_TYPE}, Snapshots(stand.sources).body())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The requests are in `requests_seen`."""
