"""The stub engine's answers are a real engine's: same headers, same members, same events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from bench.router.handles import LEASE
from bench.router.messages import text
from bench.router.pattern import Answer, parse, recorded
from bench.router.stub import LEASE_SECONDS, Pair, listener, serve

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MISS = {"do_remote_decode": True, "do_remote_prefill": False}
CHUNKS = 8


class Engines:
    """Both, and a way to ask them."""

    def __init__(self, pair: Pair, ports: dict[str, int]) -> None:
        self.pair, self._ports = pair, ports

    async def ask(self, role: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Over a connection of its own, which stays open behind the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[role])
        content = b"" if body is None else orjson.dumps(body)
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        raw = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in raw:
            raw += await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            raw += await reader.readexactly(int(raw.split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()
        await writer.wait_closed()
        return parse(raw)

    async def turn(self, name: str, **more: Any) -> tuple[Answer, Answer]:
        """Both answers of a first turn."""
        first = await self.ask("prefill", PATHS[name], request(name) | {"kv_transfer_params": MISS})
        params = first.document()["kv_transfer_params"]
        return first, await self.ask(
            "decode", PATHS[name], request(name, **more) | {"kv_transfer_params": params}
        )


def request(name: str, **more: Any) -> dict[str, Any]:
    history = (
        {"messages": [{"role": "user", "content": "word " * 200}]}
        if name == "chat"
        else {"prompt": "word " * 200}
    )
    return {"model": "tiny", **history, **more}


def run(test: Callable[[Engines], Awaitable[None]]) -> None:
    async def inside() -> None:
        pair, sockets = Pair(chunks=CHUNKS), (listener(), listener())
        ports = {role: one.getsockname()[1] for role, one in zip(("prefill", "decode"), sockets, strict=True)}
        async with serve(pair, *sockets):
            await test(Engines(pair, ports))

    asyncio.run(inside())


def shape(value: Any) -> Any:
    """Members, their order and kinds, and lists' lengths: a stub may differ in numbers and texts."""
    if isinstance(value, dict):
        return [(name, shape(member)) for name, member in value.items()]
    if isinstance(value, list):
        return [shape(member) for member in value]
    return type(value).__name__


def headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    free = (b"date", b"content-length")
    return [(name, b"" if name in free else value) for name, value in answer.headers]


def tokens_of(name: str, pattern: Answer) -> int:
    """Events of a stream that bring a token; a chat's first brings the role."""
    return sum(bool(event["choices"]) for event in pattern.events()) - (name == "chat")


def assert_alike(answer: Answer, pattern: Answer) -> None:
    assert (answer.status, headers(answer)) == (pattern.status, headers(pattern))


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("name", PATHS)
def test_prefills_answer(name: str) -> None:
    async def test(engines: Engines) -> None:
        answer, _ = await engines.turn(name)
        pattern = recorded(f"{name}-prefill")
        assert_alike(answer, pattern)
        assert shape(answer.document()) == shape(pattern.document())
        assert answer.document()["kv_transfer_params"]["pd_read"] == 0

    run(test)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    ("more", "kind"),
    [(STREAMED, "decode-stream"), ({"stream": True}, "decode-stream-without-usage")],
    ids=["usage", "no-usage"],
)
def test_decodes_stream(name: str, more: dict[str, Any], kind: str) -> None:
    async def test(engines: Engines) -> None:
        pattern = recorded(f"{name}-{kind}")
        engines.pair.chunks = tokens_of(name, pattern)
        _, answer = await engines.turn(name, **more)
        assert_alike(answer, pattern)
        assert shape(answer.events()) == shape(pattern.events())
        choices = [event["choices"][0] for event in answer.events() if event["choices"]]
        said = [
            choice["delta"].get("content", "") if name == "chat" else choice["text"] for choice in choices
        ]
        assert "".join(said) == text(engines.pair.chunks)
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]

    run(test)


@pytest.mark.parametrize("name", PATHS)
def test_decodes_whole_answer(name: str) -> None:
    async def test(engines: Engines) -> None:
        _, answer = await engines.turn(name)
        pattern = recorded(f"{name}-decode-whole")
        assert_alike(answer, pattern)
        assert shape(answer.document()) == shape(pattern.document())
        assert answer.document()["usage"]["completion_tokens"] == CHUNKS

    run(test)


@pytest.mark.parametrize("name", PATHS)
def test_a_turn_of_decode_alone(name: str) -> None:
    async def test(engines: Engines) -> None:
        pattern = recorded(f"{name}-decode-local-stream")
        engines.pair.chunks = tokens_of(name, pattern)
        asked = request(name, **STREAMED) | {"kv_transfer_params": {"pd_retain": True}}
        answer = await engines.ask("decode", PATHS[name], asked)
        assert_alike(answer, pattern)
        assert shape(answer.events()) == shape(pattern.events())
        assert engines.pair.requests == {"prefill": 0, "decode": 1}

    run(test)


@pytest.mark.parametrize("params", [None, "once"])
def test_nothing_is_kept_that_nobody_comes_back_for(params: str | None) -> None:
    async def test(engines: Engines) -> None:
        first, _ = await engines.turn("chat")
        pulled = first.document()["kv_transfer_params"] | {"pd_retain": False}
        asked = request("chat", **STREAMED) | ({"kv_transfer_params": pulled} if params else {})
        answer = await engines.ask("decode", PATHS["chat"], asked)
        assert all("kv_transfer_params" not in event for event in answer.events())
        assert answer.events()[-1]["usage"]["completion_tokens"] == CHUNKS

    run(test)


def test_prefill_reads_a_held_handle_once() -> None:
    async def test(engines: Engines) -> None:
        _, answer = await engines.turn("chat", **STREAMED)
        held = answer.events()[-1]["kv_transfer_params"]
        assert held["pd_lease"] != LEASE
        reads = []
        for _ in range(2):
            longer = request("chat") | {"kv_transfer_params": held | MISS}
            longer["messages"] = [*longer["messages"], {"role": "user", "content": "more " * 2000}]
            again = await engines.ask("prefill", PATHS["chat"], longer)
            assert shape(again.document()) == shape(recorded("chat-prefill-readback").document())
            reads.append(again.document()["kv_transfer_params"]["pd_read"])
        assert reads == [held["pd_proof"]["tokens"], 0]

    run(test)


def test_lease_routes() -> None:
    async def test(engines: Engines) -> None:
        _, answer = await engines.turn("chat", **STREAMED)
        lease = answer.events()[-1]["kv_transfer_params"]["pd_lease"]
        for operation, name in (
            ("renew", lease),
            ("claim", lease),
            ("release", lease),
            ("claim", "never-granted"),
        ):
            got = await engines.ask("decode", f"/pd/leases/{operation}", {"leases": [name]})
            pattern = recorded("leases-unknown" if name == "never-granted" else f"leases-{operation}")
            assert_alike(got, pattern)
            (mine,), (real,) = got.document()["leases"].values(), pattern.document()["leases"].values()
            assert shape(mine) == shape(real)
            assert (mine["ok"], mine["state"]) == (real["ok"], real["state"])
            assert mine.get("seconds", LEASE_SECONDS) == LEASE_SECONDS
        assert len(engines.pair.leases) == 0
        assert engines.pair.leases.released == 1

    run(test)


def test_decode_lets_go_of_leases_named_in_a_request() -> None:
    async def test(engines: Engines) -> None:
        _, answer = await engines.turn("chat", **STREAMED)
        lease = answer.events()[-1]["kv_transfer_params"]["pd_lease"]
        asked = request("chat") | {
            "kv_transfer_params": {"pd_retain": True, "pd_release": [lease, "unknown"]}
        }
        await engines.ask("decode", PATHS["chat"], asked)
        assert engines.pair.leases.released == 1
        assert len(engines.pair.leases) == 1

    run(test)


def test_health_models_metrics_and_the_rest() -> None:
    async def test(engines: Engines) -> None:
        for role in ("prefill", "decode"):
            assert_alike(await engines.ask(role, "/health"), recorded("health"))
            lost = await engines.ask(role, "/nowhere")
            assert_alike(lost, recorded("not-found"))
            assert lost.document() == recorded("not-found").document()
            models = (await engines.ask(role, "/v1/models")).document()
            assert [model["id"] for model in models["data"]] == ["tiny"]
            assert b"pd_connector:leases_held 0" in (await engines.ask(role, "/metrics")).content

    run(test)


def test_a_paced_stream_is_the_same_stream() -> None:
    async def test(engines: Engines) -> None:
        asked = request("chat", **STREAMED) | {"kv_transfer_params": {"pd_retain": False}}
        at_once = await engines.ask("decode", PATHS["chat"], asked)
        engines.pair.gap_s = 0.001
        paced = await engines.ask("decode", PATHS["chat"], asked)
        assert paced == at_once

    run(test)


@pytest.mark.parametrize("broken", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", b"hello\r\n\r\n"])
def test_what_is_no_whole_answer_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError):
        parse(broken)
