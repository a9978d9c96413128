"""`toolkit router serve`: what its options become, and its help as a user reads it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from toolkit.cli import router
from toolkit.errors import SettingsError
from toolkit.router.config import RouterConfig

ENGINES = ("--prefill", "http://p:1", "--decode", "http://d:1")
# Values of RouterConfig that the command line leaves at their defaults.
NOT_OFFERED = {
    "max_conversations",
    "max_map_bytes",
    "max_body_bytes",
    "connect_timeout_s",
    "health_timeout_s",
}


def parsed(*options: str, engines: tuple[str, ...] = ENGINES, **environ: str) -> RouterConfig:
    """The configuration that the command would serve with."""
    command = router.cli.commands["serve"]
    with CliRunner().isolation(env=environ), command.make_context("serve", [*engines, *options]) as context:
        return router.config_of(**context.params)


def test_without_options_the_defaults_are_those_of_the_configuration() -> None:
    assert parsed() == RouterConfig(prefill=("http://p:1",), decode=("http://d:1",))


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (("--members", "m"), "members", Path("m")),
        (("--health-interval", "0.5"), "health_interval_s", 0.5),
        (("--eject-after", "5"), "eject_after", 5),
        (("--host", "0.0.0.0"), "host", "0.0.0.0"),
        (("--port", "0"), "port", 0),
        (("--api-keys", "k"), "api_keys", Path("k")),
        (("--access-log", "a"), "access_log", Path("a")),
        (("--path", "auto"), "path", "auto"),
        (("--path", "prefill"), "path", "prefill"),
        (("--path", "readback"), "path", "readback"),
        (("--path", "decode-local"), "path", "decode-local"),
        (("--decode-local-tokens", "0"), "decode_local_tokens", 0),
        (("--decode-local-pending-tokens", "7"), "decode_local_pending_tokens", 7),
        (("--no-decode-alone",), "decode_alone", False),
        (("--ttl", "60"), "ttl_s", 60.0),
        (("--lease-hold", "3600"), "lease_hold_s", 3600.0),
        (("--lease-secret-file", "s"), "lease_secret_file", Path("s")),
        (("--no-claim",), "claim", False),
        (("--claim",), "claim", True),
        (("--map-file", "f"), "map_file", Path("f")),
        (("--max-concurrent", "9"), "max_concurrent", 9),
        (("--max-queue", "0"), "max_queue", 0),
        (("--queue-timeout", "2.5"), "queue_timeout_s", 2.5),
        (("--max-connections", "9"), "max_connections", 9),
        (("--header-timeout", "3"), "header_timeout_s", 3.0),
        (("--keepalive", "5"), "keepalive_s", 5.0),
        (("--prefill-timeout", "20"), "prefill_timeout_s", 20.0),
        (("--stall-timeout", "30"), "stall_timeout_s", 30.0),
        (("--answer-timeout", "40"), "answer_timeout_s", 40.0),
        (("--drain-timeout", "9"), "drain_timeout_s", 9.0),
    ],
)
def test_each_option_becomes_its_value_and_changes_nothing_else(
    options: tuple[str, ...], name: str, value: object
) -> None:
    config, usual = parsed(*options), parsed()
    assert getattr(config, name) == value
    others = [field.name for field in fields(RouterConfig) if field.name != name]
    assert [getattr(config, other) for other in others] == [getattr(usual, other) for other in others]


def test_options_that_go_together() -> None:
    config = parsed(
        *("--tls-cert", "c", "--tls-key", "k", "--api-keys", "a", "--engine-key-file", "e"),
        *("--members", "m"),
        engines=(),
    )
    assert (config.tls_cert, config.tls_key) == (Path("c"), Path("k"))
    assert (config.api_keys, config.engine_key_file) == (Path("a"), Path("e"))
    assert (config.prefill, config.decode, config.members) == ((), (), Path("m"))


def test_the_lease_secrets_file_may_come_from_the_environment() -> None:
    assert parsed(PD_LEASE_SECRET_FILE="s").lease_secret_file == Path("s")
    chosen = parsed("--lease-secret-file", "t", PD_LEASE_SECRET_FILE="s")
    assert chosen.lease_secret_file == Path("t")


def test_every_value_is_offered_or_left_at_its_default_on_purpose() -> None:
    offered = {router.field_of(param.name or "") for param in options()}
    assert offered == {field.name for field in fields(RouterConfig)} - NOT_OFFERED


def serve(*options: str) -> Result:
    return CliRunner().invoke(router.cli, ["serve", *options], catch_exceptions=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--path", "fastest"), "'fastest' is not one of 'auto', 'prefill', 'readback', 'decode-local'"),
        (("--max-concurrent", "0"), "0 is not in the range x>=1"),
        (("--max-queue", "-1"), "-1 is not in the range x>=0"),
        (("--queue-timeout", "0"), "0.0 is not in the range x>0"),
        (("--decode-local-tokens", "many"), "'many' is not a valid integer"),
        (("--lease-secret", "s3cret"), "No such option"),
        (("--api-key", "s3cret"), "No such option"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_usage_error(given: tuple[str, ...], said: str) -> None:
    result = serve(*ENGINES, *given)
    assert result.exit_code == 2
    assert said in result.output
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "The router has no prefill engine."),
        (("--prefill", "http://p:1"), "The router has no decode engine."),
        ((*ENGINES, "--tls-cert", "c"), "--tls-cert is given without --tls-key."),
        ((*ENGINES, "--engine-key-file", "e"), "--engine-key-file without --api-keys"),
        ((*ENGINES, "--lease-hold", "450"), "--lease-hold 450 is not above --ttl 450"),
    ],
)
def test_values_that_do_not_go_together_are_refused(given: tuple[str, ...], said: str) -> None:
    result = serve(*given)
    assert isinstance(result.exception, SettingsError)
    assert said in result.exception.what
    assert result.exception.next_step


def options() -> list[click.Option]:
    command: Any = router.cli.commands["serve"]
    return [param for param in command.params if isinstance(param, click.Option)]


def help_at(width: int) -> str:
    result = CliRunner().invoke(router.cli, ["serve", "--help"], terminal_width=width, max_content_width=110)
    assert result.exit_code == 0
    return result.output


def test_the_help_lists_every_option_once_below_its_heading() -> None:
    text = help_at(110)
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings == ["Engines", "Clients", "Paths", "Conversations and their KV", "Limits", "Other"]
    for option in options():
        assert len(re.findall(rf"^  {option.opts[0]}(?= )", text, re.MULTILINE)) == 1, option.opts
    other = text.partition("\nOther:\n")[2]
    assert re.findall(r"^  (\S+)", other, re.MULTILINE) == ["--help"]


def test_the_help_tells_defaults_and_units_and_no_ranges() -> None:
    text = " ".join(help_at(110).split())
    assert "--ttl SECONDS" in text
    assert "[default: 450.0]" in text
    assert "--max-queue N" in text
    assert "[env var: PD_LEASE_SECRET_FILE]" in text
    assert "x>" not in text
    assert "RANGE" not in text


@pytest.mark.parametrize("width", [80, 110])
def test_the_help_stays_within_the_terminal(width: int) -> None:
    assert max(map(len, help_at(width).splitlines())) <= width
