"""What the router refuses to start with, and that the message names flag, URL and a way out."""

from __future__ import annotations

from itertools import product

import pytest
from click.testing import CliRunner

from toolkit.cli.router import cli
from toolkit.errors import SettingsError
from toolkit.router.config import RouterConfig

GOOD = {"prefill": ("http://p:1",), "decode": ("http://d:1",)}


def refusal(**changed) -> str:
    with pytest.raises(SettingsError) as caught:
        RouterConfig(**{**GOOD, **changed})
    assert caught.value.exit_code == 2
    assert caught.value.next_step
    return caught.value.what


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("url", "shown", "why"),
    [
        ("http://a b:1", "http://a b:1", "blank"),
        (" http://h:1", " http://h:1", "blank"),
        ("http://h:1\n", r"http://h:1\n", "line break"),
        ("http://h\n:1", r"http://h\n:1", "line break"),
        ("http://h:1/a\tb", r"http://h:1/a\tb", "blank"),
        ("http://h\u00a0:1", r"http://h\xa0:1", "blank"),
        ("http://h\x00:1", r"http://h\x00:1", "character"),
        ("http://h:1\u200b", r"http://h:1\u200b", "character"),
        ("http://user:secret@h:1", "http://***@h:1", "credential"),
        ("http://secret@h:1", "http://***@h:1", "credential"),
        ("http://@h:1", "http://***@h:1", "credential"),
        ("http://user:secret@h:port", "http://***@h:port", "port"),
        ("http://user:sec ret@h:1", "http://***@h:1", "blank"),
        ("http://h:1?key=secret", "http://h:1?***", "query"),
        ("http://h:1/#secret", "http://h:1/?***", "fragment"),
        ("http://h:1?", "http://h:1?***", "query"),
        ("http://h:port", "http://h:port", "port between 1 and 65535"),
        ("http://h:", "http://h:", "port between 1 and 65535"),
        ("http://h:0", "http://h:0", "port between 1 and 65535"),
        ("http://h:65536", "http://h:65536", "port between 1 and 65535"),
        ("http://h:-1", "http://h:-1", "port between 1 and 65535"),
        ("", "", "http://"),
        ("h:1", "h:1", "http://"),
        ("10.0.0.1:8100", "10.0.0.1:8100", "http://"),
        ("ftp://h:1", "ftp://h:1", "http://"),
        ("http://", "http://", "host"),
        ("http://:1", "http://:1", "valid host"),
        ("http://h,i:1", "http://h,i:1", "valid host"),
        ("http://a%20b:1", "http://a%20b:1", "valid host"),
        ("http://h..i:1", "http://h..i:1", "valid host"),
        (f"http://{'a' * 64}:1", f"http://{'a' * 64}:1", "valid host"),
        ("http://h:1/bäse", "http://h:1/bäse", "not percent-encoded"),
        ("http://[::1:1", "http://[::1:1", "valid host"),
        ("http://[nonsense]:1", "http://[nonsense]:1", "valid host"),
    ],
)
def test_a_url_that_cannot_be_an_engines_is_shown_and_refused(role, url, shown, why):
    said = refusal(**{role: ("http://good:1", url)})
    assert f"--{role} '{shown}'" in said
    assert why in said
    assert "secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1",
        "https://h",
        "http://10.0.0.1:8100",
        "http://[::1]:8100",
        "http://[fe80::1%eth0]:1",
        "http://a-b.c_d.example.:65535/base/path",
    ],
)
def test_a_good_url_is_kept_as_it_is(url):
    assert RouterConfig(prefill=(url,), decode=("http://other:1/",)).prefill == (url,)


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        (("http://h:1",), ("http://h:1",), "--decode 'http://h:1' is given to --prefill too"),
        (("http://h:1", "http://h:1"), ("http://d:1",), "--prefill 'http://h:1' is given twice"),
        (("http://p:1",), ("http://h:1", "http://i:1", "http://h:1"), "--decode 'http://h:1' is given twice"),
        (("http://h:1",), ("http://H:1/",), "--decode 'http://H:1' is given to --prefill too"),
        (("http://h",), ("HTTP://h:80",), "--decode 'HTTP://h:80' is given to --prefill too"),
        (("https://h:443/a/",), ("https://h/a",), "--decode 'https://h/a' is given to --prefill too"),
    ],
)
def test_an_engine_is_given_once(prefill, decode, said):
    assert said in refusal(prefill=prefill, decode=decode)


def test_engines_that_differ_in_port_or_base_are_two():
    config = RouterConfig(prefill=("http://h:1", "http://h:1/b"), decode=("http://h:2", "https://h:1"))
    assert (len(config.prefill), len(config.decode)) == (2, 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0, -1.0])
@pytest.mark.parametrize(
    ("name", "flag"),
    [("ttl_s", "--ttl"), ("stall_timeout_s", "--stall-timeout"), ("eject_after", "--eject-after")],
)
def test_a_number_must_be_finite_and_positive(name, flag, value):
    assert f"{flag} must be a finite number above 0, not {value}" in refusal(**{name: value})


@pytest.mark.parametrize("value", [10**16, 10**400, 1e300])
@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("max_concurrent", "--max-concurrent"),
        ("ttl_s", "--ttl"),
        ("decode_local_tokens", "--decode-local-tokens"),
    ],
)
def test_a_number_must_not_be_beyond_all_measure(name, flag, value):
    assert f"{flag} must be at most 1,000,000,000,000,000, not 1" in refusal(**{name: value})


@pytest.mark.parametrize("host", ["", " ", "a b", "127.0.0.1\n", "http://h", "h/x"])
def test_a_host_that_is_no_address_is_refused(host):
    assert f"--host {host!r}" in refusal(host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "fe80::1%eth0", "localhost", "my-host.example"])
def test_a_host_that_is_an_address_is_kept(host):
    assert RouterConfig(**GOOD, host=host).host == host


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port):
    assert f"--port {port}" in refusal(port=port)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ttl", "nan"), "--ttl"),
        (("--ttl", "inf"), "--ttl"),
        (("--host", ""), "--host ''"),
        (("--decode", "http://a b:1"), "--decode 'http://a b:1'"),
        (("--decode", "http://p:1"), "given to --prefill too"),
    ],
)
def test_the_command_passes_the_refusal_on(options, said):
    argv = ["serve", "--prefill", "http://p:1", "--decode", "http://d:1", *options]
    with pytest.raises(SettingsError) as caught:
        CliRunner().invoke(cli, argv, catch_exceptions=False)
    assert said in caught.value.what


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_each_role_needs_an_engine_or_a_file_of_them(role, tmp_path):
    assert f"no {role} engine" in refusal(**{role: ()})
    assert getattr(RouterConfig(**{**GOOD, role: ()}, members=tmp_path), role) == ()


def test_urls_lose_their_last_slash():
    config = RouterConfig(prefill=("http://p:1/",), decode=("http://d:1/base/",))
    assert (config.prefill, config.decode) == (("http://p:1",), ("http://d:1/base",))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"path": "fastest"}, "--path 'fastest' is not a path"),
        ({"tls_cert": "c"}, "--tls-cert is given without --tls-key"),
        ({"tls_key": "k"}, "--tls-key is given without --tls-cert"),
        ({"engine_key_file": "k"}, "--engine-key-file without --api-keys"),
        ({"ttl_s": 100.0, "lease_hold_s": 100.0}, "--lease-hold 100 is not above --ttl 100"),
        ({"lease_hold_s": float("nan")}, "--lease-hold must be a finite number"),
        ({"max_queue": -1}, "--max-queue must be a finite number of at least 0"),
    ],
)
def test_what_contradicts_itself_is_refused(changed, said):
    assert said in refusal(**changed)


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("access_log", "map_file"),
        *product(
            ["access_log", "map_file"], ["members", "api_keys", "lease_secret_file", "tls_cert", "tls_key"]
        ),
    ],
)
def test_what_the_router_writes_has_a_file_of_its_own(written, other, tmp_path):
    (tmp_path / "folder").mkdir()
    again = tmp_path / "folder" / ".." / "file"
    files = {"tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key"} if other.startswith("tls") else {}
    said = refusal(**{**files, written: tmp_path / "file", other: again})
    flags = ["--" + name.replace("_", "-") for name in (written, other)]
    assert all(flag in said for flag in flags)
    assert "is the file of" in said


def test_certificate_and_key_may_be_one_file(tmp_path):
    both = tmp_path / "both"
    assert RouterConfig(**GOOD, tls_cert=both, tls_key=both, access_log=tmp_path / "log").tls_key == both
