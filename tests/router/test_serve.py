"""The command itself: a real process that starts, refuses, drains, ends, is killed and remembers."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from toolkit.cli.router import cli
from toolkit.router import app
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.serving import wait_until

TOOLKIT = [sys.executable, "-P", "-m", "toolkit", "router", "serve"]


@contextmanager
def running(engine, *options):
    (_, prefill), (_, decode) = engine("prefill"), engine("decode")
    command = [*TOOLKIT, "--port", "0", "--prefill", prefill, "--decode", decode, *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            told = next(line for line in process.stderr if line.startswith("router listens on "))
            yield process, told.removeprefix("router listens on ").strip()
        finally:
            process.kill()


def refusal(*options):
    """Standard error of a command that does not start."""
    result = subprocess.run(
        [*TOOLKIT, "--prefill", "http://h:1", "--decode", "http://h:2", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    return result.stderr


def commits(wal):
    """Transactions in SQLite's write-ahead log. The file itself is open to the router alone."""
    log = wal.read_bytes()
    frame = 24 + int.from_bytes(log[8:12], "big")
    # A frame that ends a transaction has the size of the database after it.
    return sum(any(log[at + 4 : at + 8]) for at in range(32, len(log) - frame + 1, frame))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_on_a_signal_and_exits_0(engine, conversation, number, make_client):
    decode, _ = engine("decode")
    decode.token_s = 0.1
    started = time.monotonic()
    with running(engine) as (process, url):
        assert make_client(url).ask("GET", "/health").status == 200
        print(f"ready {time.monotonic() - started:.2f} s after its start")
        connection = make_client(url).send(
            "POST", Endpoint.CHAT, {"messages": [], "stream": True, "conversation_id": conversation}
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
        with pytest.raises(ConnectionRefusedError):
            make_client(url).ask("GET", "/health")
    assert "ends: takes no more connections; 1 requests have 60 s to finish" in log
    assert "cut off" not in log
    assert "Prefill done in" in log
    assert "outcome=ok" in log
    assert "Traceback" not in log


def test_what_the_drain_cuts_off_is_told(engine, make_client):
    decode, _ = engine("decode")
    decode.token_s = 30
    with running(engine, "--drain-timeout", 0.1) as (process, url):
        connection = make_client(url).send("POST", Endpoint.CHAT, {"messages": [], "stream": True})
        wait_until(lambda: decode.seen)
        os.kill(process.pid, signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(10) == 0
        connection.close()
    assert "1 requests have 0.1 s to finish" in log
    assert "1 requests were cut off after 0.1 s" in log
    assert "outcome=shutdown" in log


def test_the_command_runs_the_form_that_is_installed(engine, make_client):
    form = "interpreted" if app.__file__.endswith(".py") else "compiled"
    with running(engine) as (_, url):
        assert make_client(url).metric("pd_router_build_info", form=form) == 1


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


def test_with_a_map_file_it_remembers_what_decode_holds(engine, history, conversation, make_client, tmp_path):
    """Killed without a word, then ended in good order: both times the next turn is read back."""
    decode, _ = engine("decode")
    options = ("--path", "readback", "--map-file", tmp_path / "map")
    mine = {"Authorization": "Bearer mine"}
    answers = []
    with running(engine, *options) as (process, url):
        client, wal = make_client(url), tmp_path / "map-wal"
        for ask in (
            lambda: client.chat(conversation, headers=mine),
            lambda: client.turn(Endpoint.RESPONSES, history(1), headers=mine, stream=True),
        ):
            before = commits(wal)
            ask()
            # Within a second.
            wait_until(lambda before=before: commits(wal) > before)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    with running(engine, *options) as (process, url):
        client = make_client(url)
        assert client.metric("pd_router_conversations") == 2
        # The tenants' secret is remembered too, and nobody else's is found by it.
        assert client.chat(conversation).path == "prefill"
        answers.append(client.chat(conversation, headers=mine))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()
    with running(engine, *options) as (process, url):
        answers.append(make_client(url).turn(Endpoint.RESPONSES, history(2), headers=mine))
        answers.append(make_client(url).chat(conversation, headers=mine))
    assert [answer.path for answer in answers] == ["readback"] * 3
    assert all(answer.read_tokens > 0 for answer in answers)
    assert decode.leases.counts["granted"] == 6
    rows = sqlite3.connect(tmp_path / "map")
    assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows.close()
    assert oct((tmp_path / "map").stat().st_mode & 0o777) == "0o600"


def test_a_map_file_of_engines_that_were_restarted_meanwhile_costs_only_the_read(
    engine, conversation, make_client, tmp_path
):
    decode, _ = engine("decode")
    options = ("--path", "readback", "--map-file", tmp_path / "map")
    answers = []
    for _ in range(2):
        with running(engine, *options) as (process, url):
            answers += [make_client(url).chat(name) for name in (conversation, "other")]
            os.kill(process.pid, signal.SIGTERM)
            process.wait(10)
        decode.restart("second-life")
    assert [(answer.status, answer.read_tokens) for answer in answers] == [(200, 0)] * 4
    assert [answer.body for answer in answers] == [seen.clean for seen in decode.seen]
    # The first turn finds out; the second is known to be gone.
    assert [answer.path for answer in answers] == ["prefill", "prefill", "readback", "prefill"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--access-log", "no/log"), "access log"),
        (("--map-file", "no/map"), "map"),
        (("--api-keys", "no/keys"), "--api-keys"),
        (("--tls-cert", "no/cert", "--tls-key", "no/key"), "--tls-cert"),
        (("--members", "no/members"), "no/members"),
        (("--lease-secret-file", "no/secret"), "--lease-secret-file"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_settings_error(options, told, tmp_path):
    given = [str(tmp_path / option) if option.startswith("no/") else option for option in options]
    assert told in refusal(*given)


def test_usage_is_shown_without_loading_the_server():
    result = CliRunner().invoke(cli, ["serve", "--help"])
    assert result.exit_code == 0
    for option in ("--host", "--port", "--prefill", "--decode", "--ttl", "--access-log", "--map-file"):
        assert re.search(rf"{option}\b", result.output)
    code = "import sys, toolkit.cli.router; sys.exit('uvloop' in sys.modules or 'httptools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("host", "in_use", "told"),
    [
        # RFC 5737 keeps it for documentation: no machine has it.
        ("192.0.2.1", False, "give an address of this machine with --host"),
        ("no.such.host.invalid", False, "give an address of this machine with --host"),
        (
            "127.0.0.1",
            True,
            "stop what uses that address (`ss -ltnp` names it) or choose another with --port",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_what_to_do(host, in_use, told):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if in_use else 0
        result = subprocess.run(
            [
                *TOOLKIT,
                "--prefill",
                "http://h:1",
                "--decode",
                "http://h:2",
                "--host",
                host,
                "--port",
                str(port),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert f"The router cannot listen on {host} port {port}: " in result.stderr
    assert result.stderr.splitlines()[-1] == f"Next: {told}"
