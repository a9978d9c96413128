"""The command itself: a real process that starts, refuses, drains and ends."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from toolkit.cli.router import cli

TOOLKIT = [sys.executable, "-m", "toolkit", "router", "serve"]


@contextmanager
def running(engine, *options):
    (_, prefill), (_, decode) = engine("prefill"), engine("decode")
    command = [*TOOLKIT, "--port", "0", "--prefill", prefill, "--decode", decode, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stderr.readline().removeprefix("router listens on ").strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_on_a_signal_and_exits_0(engine, conversation, number, make_client):
    decode, _ = engine("decode")
    decode.token_s = 0.1
    with running(engine) as (process, url):
        connection = make_client(url).send(
            "POST", "/v1/chat/completions", {"messages": [], "stream": True, "conversation_id": conversation}
        )
        answer = connection.getresponse()
        first = answer.readline()
        os.kill(process.pid, number)
        rest = answer.read()
        connection.close()
        assert first + rest == decode.seen[0].clean
        assert rest.endswith(b"data: [DONE]\n\n")
        log = process.stderr.read()
        assert process.wait(10) == 0
    assert "Prefill done in" in log
    assert "Traceback" not in log


def test_a_port_in_use_is_told_in_one_paragraph(engine, make_client):
    with running(engine) as (_, url):
        port = url.rpartition(":")[2]
        second = subprocess.run(
            [*TOOLKIT, "--port", port, "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert make_client(url).chat().status == 200
    assert second.returncode == 1
    assert f"127.0.0.1 port {port}" in second.stderr
    assert "--port" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_restarted_router_has_forgotten_and_answers_right(engine, conversation, make_client):
    paths = []
    for _ in range(2):
        with running(engine) as (_, url):
            answer = make_client(url).chat(conversation)
            assert answer.status == 200
            paths.append(answer.path)
    assert paths == ["prefill", "prefill"]


def test_an_access_log_that_cannot_be_written_is_a_settings_error(tmp_path):
    result = subprocess.run(
        [
            *TOOLKIT,
            "--prefill",
            "http://h:1",
            "--decode",
            "http://h:2",
            "--access-log",
            tmp_path / "no" / "log",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert "access log" in result.stderr


def test_usage_is_shown_without_loading_the_server():
    result = CliRunner().invoke(cli, ["serve", "--help"])
    assert result.exit_code == 0
    for option in ("--host", "--port", "--prefill", "--decode", "--ttl", "--access-log"):
        assert option in result.output
    code = "import sys, toolkit.cli.router; sys.exit('uvicorn' in sys.modules or 'aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
