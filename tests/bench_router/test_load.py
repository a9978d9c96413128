"""Wrong answers are never counted, and what is counted is what happened."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.router import check
from bench.router.bodies import MIX
from bench.router.client import Door, LoadFailed
from bench.router.load import Bench
from bench.router.targets import BARE, Places, TargetFailed, running
from bench.router.window import Cores, Window
from tests.bench_router.plain_router import PlainRouter, with_plain_router


def bench(router: PlainRouter) -> Bench:
    return Bench(router.pair, (router.prefill, router.decode), Cores(0, 0), warm_s=0.05, window_s=0.2)


def test_saturation_counts_what_the_engines_answered() -> None:
    async def test(router: PlainRouter) -> None:
        window = await bench(router).saturate(router.router(), 4096, MIX)
        # Answers before and behind the window are the engines' too, and no other.
        assert 0 < window.requests <= sum(window.paths.values()) == router.pair.requests["decode"]
        assert router.pair.requests["prefill"] == router.pair.requests["decode"]
        assert window.paths.keys() == {""}
        assert window.cpu_s > 0
        assert window.seconds >= 0.2
        assert len(window.first_s) >= window.requests - 32
        assert all(second > 0 for second in window.first_s)

    with_plain_router(test)


def test_the_floor_asks_both_engines_itself() -> None:
    async def test(router: PlainRouter) -> None:
        router.pair.seen = []
        window = await bench(router).first_tokens(None, 4096, 4)
        assert window.cpu_s == 0
        assert window.first_s
        roles = [role for role, _, _ in router.pair.seen]
        assert roles.count("prefill") == roles.count("decode") > 0
        for role, _, body in router.pair.seen:
            assert body["kv_transfer_params"]["do_remote_prefill"] is (role == "decode")

    with_plain_router(test)


def test_chunks_are_counted_as_they_come() -> None:
    async def test(router: PlainRouter) -> None:
        # Decode's own stream: this router would pass it on only when it is whole.
        window = await bench(router).chunks(replace(router.router(), door=router.decode))
        assert 0 < window.events <= router.pair.requests["decode"] * router.pair.chunks
        assert router.pair.requests["decode"] >= 64

    with_plain_router(test)


def test_the_floor_of_chunks_asks_decode_alone_and_uses_cpu(tmp_path: Path) -> None:
    async def test(router: PlainRouter) -> None:
        places = Places(router.prefill.url, router.decode.url, tmp_path, tmp_path)
        async with running("bare", BARE, places, min(os.sched_getaffinity(0))) as bare:
            window = await bench(router).chunks(bare)
        assert 0 < window.events <= router.pair.requests["decode"] * router.pair.chunks
        assert window.cpu_s > 0
        assert router.pair.requests["prefill"] == 0

    with_plain_router(test)


def spoiled(name: str) -> Any:
    def change(body: dict[str, Any]) -> dict[str, Any]:
        if name == "messages":
            return body | {"messages": body["messages"][:-1]}
        if name == "params":
            return {key: value for key, value in body.items() if key != "kv_transfer_params"}
        return body | {"stream_options": None}

    return change


@pytest.mark.parametrize(
    ("what", "error"),
    [("messages", "messages once and unchanged"), ("params", "told to pull 0 times"), ("usage", "18 events")],
)
def test_a_router_that_changes_the_request_is_not_measured(what: str, error: str) -> None:
    async def test(router: PlainRouter) -> None:
        router.spoil = spoiled(what)
        with pytest.raises(LoadFailed, match=error):
            await check.one_conversation(router.pair, router.router())

    with_plain_router(test)


def test_a_router_that_never_asks_prefill_is_not_measured() -> None:
    async def test(router: PlainRouter) -> None:
        router.without_prefill = True
        with pytest.raises(LoadFailed, match="or none"):
            await check.one_conversation(router.pair, router.router())

    with_plain_router(test)


def test_an_answer_that_is_cut_ends_the_run() -> None:
    async def test(router: PlainRouter) -> None:
        router.cut = True
        with pytest.raises(LoadFailed, match="in the middle of an answer"):
            await bench(router).saturate(router.router(), 4096, MIX)

    with_plain_router(test)


def test_a_good_router_passes_with_what_a_reader_should_know() -> None:
    async def test(router: PlainRouter) -> None:
        remarks = await check.one_conversation(router.pair, router.router())
        assert remarks == ["plain passes the KV handle on to clients"]
        router.spoil = lambda body: body | {"temperature": 0.5}
        remarks = await check.one_conversation(router.pair, router.router())
        assert remarks[1:] == ["plain changes what clients ask of decode: temperature"]

    with_plain_router(test)


def test_nobody_listening_is_told() -> None:
    async def test(_: PlainRouter) -> None:
        with pytest.raises(LoadFailed, match="nobody takes no connection on port 1"):
            await Door("nobody", 1).connect()

    with_plain_router(test)


def test_a_router_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    async def test(_: PlainRouter) -> None:
        places = Places("http://p", "http://d", tmp_path, Path("peer"))
        command = "sh -c 'echo no such engine: {prefill} {port}; exit 3'"
        with pytest.raises(TargetFailed, match=r"no such engine: http://p \d+"):
            async with running("broken", command, places, 0):
                pass

    with_plain_router(test)


def test_the_router_runs_pinned_and_ends(tmp_path: Path) -> None:
    script = (
        "import http.server, os, sys\n"
        "class Health(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "print(sorted(os.sched_getaffinity(0)), flush=True)\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Health).serve_forever()\n"
    )
    (tmp_path / "server.py").write_text(script)

    async def test(_: PlainRouter) -> None:
        places = Places("http://p", "http://d", tmp_path, Path("peer"))
        async with running("health", f"python3 {tmp_path}/server.py {{port}}", places, 0) as router:
            assert router.pid
            key = (tmp_path / "health" / "api-keys").read_text().strip()
            assert key == f"bench:{router.door.key}"
            assert (tmp_path / "health" / "api-keys").stat().st_mode & 0o077 == 0
        assert (tmp_path / "health" / "log").read_text().startswith("[0]\n")
        assert not Path(f"/proc/{router.pid}").exists()

    with_plain_router(test)


def test_noise_is_other_work_or_a_taking_hypervisor() -> None:
    def window(strange: float, stolen: float) -> Window:
        return Window(1.0, 1.0, 1.0, 1, 1, (0.1,), strange=strange, stolen=stolen)

    assert not window(0.05, 0.01).noisy
    assert window(0.2, 0.0).noisy
    assert window(0.0, 0.05).noisy
