import asyncio
import logging
import os
import re
import resource
import shlex
from contextlib import contextmanager

import pytest

from toolkit.errors import SettingsError
from toolkit.router.observe.accesslog import FLUSH_S, AccessLog, log_line
from toolkit.router.paths.choice import Path, Reason

FULL = {
    "conversation": b"c1",
    "identity": "explicit",
    "path": Path.READBACK,
    "reason": Reason.LONG_SUFFIX,
    "endpoint": "/v1/chat/completions",
    "stream": True,
    "queue_ms": 0.25,
    "prefill_ms": 367.14,
    "ttft_ms": 413.6,
    "status": 200,
    "prompt_tokens": 4010,
    "kv_read_tokens": 3936,
    "held_tokens": 3950,
    "suffix_tokens": 60,
    "offered": True,
    "prefill": "http://p:1",
    "decode": "http://d:1",
    "sent_bytes": 6233,
    "first_byte_at": 100.4136,
    "last_byte_at": 100.49,
    "saved": True,
    "attempts": 2,
    "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
    "key_name": "team-a",
}


UNKNOWN = (
    *("conversation", "path", "prefill_ms", "ttft_ms", "status", "prompt_tokens", "kv_read_tokens"),
    *("prefill", "decode", "failures", "endpoint", "reason", "held_tokens", "suffix_tokens", "declined"),
    *("queue_ms", "first_byte_ms", "last_byte_ms", "trace", "key"),
)


def members(line):
    """The line's members as a shell, or any reader of key=value with quotes, sees them."""
    return dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "access.log"


@pytest.fixture
def log(path):
    log = AccessLog(path)
    yield log
    log.close()


def logged(path):
    return re.findall(r"request_id=(\S+)", path.read_text())


@contextmanager
def files_limited_to(size):
    """The kernel refuses to let any file grow beyond `size` bytes: as a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_line_keeps_its_old_members_in_their_order_and_adds_the_new_ones(ended):
    line = log_line(ended(**FULL), "2026-11-29T17:47:18.548")
    assert line == (
        "2026-11-29T17:47:18.548 INFO request_id=id-1 conversation=d0f631ca1ddb path=readback "
        "prefill_ms=367.1 ttft_ms=413.6 total_ms=500.0 status=200 stream=true prompt_tokens=4010 "
        "kv_read_tokens=3936 prefill=http://p:1 decode=http://d:1 bytes=6233 "
        "saved=true retries=0 outcome=ok failures=- "
        'msg="Prefill done in 367.1ms" endpoint=/v1/chat/completions reason=long-suffix identity=explicit '
        "held_tokens=3950 suffix_tokens=60 readback=hit declined=- queue_ms=0.2 first_byte_ms=413.6 "
        "last_byte_ms=490.0 attempts=2 trace=4bf92f3577b34da6a3ce929d0e0e4736 key=team-a\n"
    )


def test_what_is_not_known_is_a_dash(ended):
    line = log_line(ended(), "T")
    assert members(line) == {
        **dict.fromkeys(UNKNOWN, "-"),
        "request_id": "id-1",
        "total_ms": "500.0",
        "stream": "false",
        "bytes": "0",
        "saved": "false",
        "retries": "0",
        "outcome": "ok",
        "identity": "none",
        "readback": "none",
        "attempts": "0",
    }
    assert "Prefill done" not in line


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"status": 200}, "INFO"),
        ({"status": 404}, "INFO"),
        ({"status": 429, "outcome": "refused"}, "WARNING"),
        ({"status": 200, "outcome": "client-gone"}, "WARNING"),
        ({"status": 502}, "WARNING"),
    ],
)
def test_what_did_not_end_well_is_a_warning(ended, fields, level):
    assert log_line(ended(**fields), "T").split()[1] == level


@pytest.mark.parametrize(
    "name", ["two words", 'a "quote"', "line\nbreak", "tab\t", "umlaut ü", "\u2028", "", "a=b"]
)
@pytest.mark.parametrize("member", ["key_name", "reason", "declined", "failures"])
def test_no_text_can_add_a_line_or_a_member(ended, name, member):
    line = log_line(ended(**{member: [name, "x"] if member == "failures" else name}), "T")
    assert line.splitlines() == [line.removesuffix("\n")]
    assert line.isascii()
    assert len(members(line)) == len(members(log_line(ended(), "T")))


def test_lines_are_in_the_file_after_close_in_order(ended, path):
    log = AccessLog(path)
    for number in range(1000):
        log.write(ended(request_id=f"r{number}"))
    log.close()
    assert logged(path) == [f"r{number}" for number in range(1000)]


def test_the_event_loop_writes_lines_by_itself(ended, log, path):
    async def run():
        log.write(ended(request_id="r1"))
        assert path.read_text() == ""
        await asyncio.sleep(FLUSH_S)
        while "request_id=r1" not in path.read_text():
            await asyncio.sleep(0.01)
        # The next line starts the clock anew.
        log.write(ended(request_id="r2"))
        while "request_id=r2" not in path.read_text():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_it_writes_to_standard_error_without_a_file(ended, capsys):
    log = AccessLog(None)
    log.write(ended(prefill_ms=12.0))
    log.close()
    assert "Prefill done in 12.0ms" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_rotated_file_is_opened_again(ended, log, path, how):
    log.write(ended(request_id="before"))
    log.sync()
    if how == "renamed":
        path = path.rename(path.with_suffix(".1")).with_suffix(".log")
        assert logged(path.with_suffix(".1")) == ["before"]
    else:
        path.unlink()
    log.write(ended(request_id="after"))
    log.sync()
    assert logged(path) == ["after"]


def test_lines_that_cannot_be_written_are_counted_and_told(ended, tmp_path, caplog):
    # Its folder goes away: the file cannot be opened again until that is back.
    path = tmp_path / "logs" / "access.log"
    path.parent.mkdir()
    log = AccessLog(path)
    path.unlink()
    path.parent.rmdir()
    with caplog.at_level(logging.ERROR, "toolkit.router"):
        for _ in range(3):
            log.write(ended())
            log.sync()
        path.parent.mkdir()
        log.write(ended(request_id="again"))
        log.close()
    assert logged(path) == ["again"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the access log {path} cannot be written, lines are lost: No such file or directory",
        f"the access log {path} is written again; 3 lines were lost",
    ]


def test_a_full_disk_does_not_glue_lines_together(ended, log, path, caplog):
    log.write(ended(request_id="first"))
    log.sync()
    whole = path.read_text()
    with caplog.at_level(logging.ERROR, "toolkit.router"):
        with files_limited_to(len(whole) + 7):
            log.write(ended(request_id="torn"))
            log.sync()
        log.write(ended(request_id="last"))
        log.sync()
    lines = path.read_text().splitlines()
    assert [len(line) for line in lines[:2]] == [len(whole) - 1, 7]
    assert "request_id=last" in lines[2]
    assert len(lines) == 3
    assert "lines are lost: File too large" in caplog.text
    assert "1 lines were lost" in caplog.text


def test_what_waits_is_bounded_and_what_is_dropped_is_told(ended, path, caplog):
    log = AccessLog(path, max_waiting_lines=10)
    with caplog.at_level(logging.ERROR, "toolkit.router"):
        for number in range(25):
            log.write(ended(request_id=f"r{number}"))
        log.close()
    assert logged(path) == [f"r{number}" for number in range(10)]
    assert f"15 lines of the access log were dropped: the access log {path} is slow" in caplog.text


def test_a_file_that_cannot_be_opened_is_a_settings_error(tmp_path):
    with pytest.raises(SettingsError, match=r"access log .*no/log cannot be written: No such file"):
        AccessLog(tmp_path / "no" / "log")


@pytest.mark.timeout(20)
def test_a_pipe_that_nobody_reads_is_a_settings_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="cannot be written"):
        AccessLog(tmp_path / "pipe")


def test_a_pipe_that_somebody_reads_gets_the_lines(ended, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        log = AccessLog(tmp_path / "pipe")
        log.write(ended())
        log.close()
        assert reader.read().count(b"request_id=id-1 ") == 1


def test_a_path_with_a_quote_is_quoted(ended):
    assert members(log_line(ended(endpoint='/a"b'), "T"))["endpoint"] == '/a"b'


def test_a_failed_request_is_told_at_once_but_a_dead_fleet_does_not_flood(ended, log, caplog):
    with caplog.at_level(logging.WARNING, "toolkit.router"):
        log.write(ended(status=429, outcome="refused"))
        assert caplog.records == []
        for _ in range(50):
            log.write(ended(status=502, outcome="refused", failures=["prefill http://p:1 refused"]))
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "request id-1: refused, status 502: prefill http://p:1 refused"
    assert len(told) < 5
