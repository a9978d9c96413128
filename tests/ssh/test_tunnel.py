"""A port of the head node's network on this machine: bytes both ways, streams, many at once, and refusals."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.head import LocalHead
from toolkit.remote.ssh_head import SshHead
from toolkit.testing.serving import free_port
from toolkit.testing.sshd import Sshd


@pytest.fixture
def go_on() -> threading.Event:
    return threading.Event()


@pytest.fixture
def server(go_on: threading.Event) -> Iterator[int]:
    """Answers a GET in two halves, the second when it is told to, and a POST with what it was sent."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"first\n")
            go_on.wait(20)
            self.wfile.write(b"second\n")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made.server_address[1]
        made.shutdown()
        thread.join()


def test_a_stream_comes_as_it_is_sent(ssh_head: SshHead, server: int, go_on: threading.Event) -> None:
    with ssh_head.tunnel("127.0.0.1", server) as url, urllib.request.urlopen(url, timeout=20) as answer:
        assert url.startswith("http://127.0.0.1:")
        assert answer.readline() == b"first\n"
        go_on.set()
        assert answer.read() == b"second\n"


def test_much_at_once(ssh_head: SshHead, server: int) -> None:
    body = bytes(range(256)) * 4000

    def post(number: int) -> bool:
        sent = body + str(number).encode()
        with urllib.request.urlopen(urllib.request.Request(url, sent), timeout=30) as answer:
            return bool(answer.read() == sent)

    with ssh_head.tunnel("127.0.0.1", server) as url, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(post, range(24)))


def test_the_port_is_chosen_and_free_again(ssh_head: SshHead, server: int, go_on: threading.Event) -> None:
    go_on.set()
    port = free_port()
    with ssh_head.tunnel("127.0.0.1", server, local_port=port) as url:
        assert url == f"http://127.0.0.1:{port}"
        with pytest.raises(ToolkitError, match=f"can't listen on port {port} of this machine"):
            ssh_head.tunnel("127.0.0.1", server, local_port=port).__enter__()
        assert urllib.request.urlopen(url, timeout=20).read() == b"first\nsecond\n"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_nothing_behind_it_is_told_and_the_tunnel_stays(
    ssh_head: SshHead, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with ssh_head.tunnel("127.0.0.1", port) as url, caplog.at_level(logging.WARNING):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 20) as client:
                assert client.recv(1) == b""
    told = [record.getMessage() for record in caplog.records if record.name.startswith("toolkit")]
    assert len(told) == 2
    assert f"the head node can't reach 127.0.0.1:{port}: Connect failed" in told[0]


def test_it_outlives_a_drop(sshd: Sshd, ssh_head: SshHead, server: int, go_on: threading.Event) -> None:
    go_on.set()
    with ssh_head.tunnel("127.0.0.1", server) as url:
        sshd.drop_connections()
        assert urllib.request.urlopen(url, timeout=20).read() == b"first\nsecond\n"


def test_this_machine_needs_none() -> None:
    with LocalHead().tunnel("10.77.0.13", 8000) as url:
        assert url == "http://10.77.0.13:8000"
