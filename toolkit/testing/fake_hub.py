"""A hub of models over real HTTP on this machine, for tests: the parts of huggingface.co that `hf download`
and the stage job use. Its address goes into HF_ENDPOINT.

with serve_hub(FakeHub("org/model", {"config.json": b"{}", "model.safetensors": ...})) as endpoint:
    ...
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHUNK = 64 * 1024


@dataclass
class FakeHub:
    """`large`: paths kept as LFS files, which the hub sends from another address. `token`: what a gated model
    asks for. `cut`: bytes after which a transfer of a path breaks, every time. `gate`: while it is not set,
    transfers wait after their first bytes. `served`: paths that were sent to their end."""

    model: str
    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    token: str | None = None
    cut: dict[str, int] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    served: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def digest(self, path: str) -> str:
        """SHA-256 of a large file, git's SHA-1 of a small one."""
        content = self.files[path]
        if path in self.large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def listed(self, path: str) -> dict[str, object]:
        entry: dict[str, object] = {
            "rfilename": path,
            "size": len(self.files[path]),
            "blobId": self.digest(path) if path not in self.large else "0" * 40,
        }
        if path in self.large:
            sha256 = self.digest(path)
            entry["lfs"] = {"sha256": sha256, "size": len(self.files[path]), "pointerSize": 134}
        return entry

    @property
    def info(self) -> dict[str, object]:
        return {
            "id": self.model,
            "modelId": self.model,
            "sha": COMMIT,
            "private": False,
            "gated": "manual" if self.token else False,
            "tags": [],
            "downloads": 0,
            "siblings": [self.listed(path) for path in self.files],
        }

    @property
    def tree(self) -> list[dict[str, object]]:
        entries = []
        for path in self.files:
            listed = self.listed(path)
            entry = {"type": "file", "path": path, "size": listed["size"], "oid": listed["blobId"]}
            if "lfs" in listed:
                entry["lfs"] = {"oid": self.digest(path), "size": listed["size"], "pointerSize": 134}
            entries.append(entry)
        return entries


@contextmanager
def serve_hub(hub: FakeHub, host: str = "127.0.0.1") -> Iterator[str]:
    """The endpoint, while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{host}:{server.server_address[1]}"
        finally:
            hub.gate.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, resolve = f"/api/models/{self.hub.model}", f"/{self.hub.model}/resolve/"
        if path.startswith("/cdn/"):
            self._send_file(path.removeprefix("/cdn/"))
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._send_json(self.hub.info)
        elif path.startswith(f"{api}/tree/"):
            self._send_json(self.hub.tree)
        elif path == f"{api}/auth-check":
            if self._admitted():
                self._send_json({})
        elif path.startswith(resolve):
            self._resolve(path.removeprefix(resolve).partition("/")[2])
        else:
            self._refuse(404, "RepoNotFound", "Repository not found")

    def _admitted(self) -> bool:
        if self.hub.token and self.headers["Authorization"] != f"Bearer {self.hub.token}":
            self._refuse(401, "GatedRepo", "Access to this model is restricted. Please log in.")
            return False
        return True

    def _resolve(self, path: str) -> None:
        if path not in self.hub.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif self._admitted():
            digest, size = self.hub.digest(path), len(self.hub.files[path])
            if path in self.hub.large:
                self.send_response(302)
                self.send_header("Location", f"/cdn/{path}")
                self.send_header("X-Linked-ETag", f'"{digest}"')
                self.send_header("X-Linked-Size", str(size))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send_file(path)

    def _send_file(self, path: str) -> None:
        content = self.hub.files[path]
        start = 0
        if (asked := self.headers["Range"]) is not None:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.hub.digest(path)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = min(len(content), self.hub.cut.get(path, len(content)))
        try:
            for at in range(start, end, CHUNK):
                self.wfile.write(content[at : min(end, at + CHUNK)])
                self.hub.gate.wait()
        except (BrokenPipeError, ConnectionResetError):
            # The client was killed, which is what some tests are about.
            self.close_connection = True
            return
        if end < len(content):
            self.close_connection = True
        else:
            self.hub.served.append(path)

    def _refuse(self, status: int, code: str, text: str) -> None:
        self._send_json({"error": text}, status, code)

    def _send_json(self, value: object, status: int = 200, code: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", str(value))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
