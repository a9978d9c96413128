"""Values that must be refused before anything starts, and the ones next to them that must not."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from toolkit.plan.embedded import plan_embedded
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import Loaded, load

Refusal = Callable[..., str]
Read = Callable[..., Loaded]
CLOUD = Path(__file__).parents[2] / "deployments" / "qwen3-32b-p5en.yaml"

TEXTS = [
    "name",
    "model.name",
    "model.served_name",
    "target.root",
    "target.engine_env",
    "target.runs_dir",
    "legs.decode.env.X",
]


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("escape", ["\\0", "\\e", "\\r", "\\x7f", "\\x85"])
def test_no_text_holds_a_control_character(key: str, escape: str, refusal: Refusal) -> None:
    assert f"{key} = 'a" in refusal("", f'{key}="a{escape}b"')


@pytest.mark.parametrize("key", TEXTS[:-1])
@pytest.mark.parametrize("escape", ["\\n", "\\t"])
def test_a_line_break_is_refused_in_names_and_paths(key: str, escape: str, refusal: Refusal) -> None:
    assert f"{key} = 'a" in refusal("", f'{key}="a{escape}b"')


def test_an_argument_holds_no_control_character(refusal: Refusal) -> None:
    message = refusal("", 'legs.decode.extra_args=["--x", "a\\0b"]')
    assert "legs.decode.extra_args.1 = 'a\\x00b' (--set legs.decode.extra_args)" in message
    assert "holds the character U+0000" in message


def test_line_breaks_and_tabs_are_kept_where_they_do_no_harm(read: Read) -> None:
    leg = read("", 'legs.decode.env.X="a\\n\\tb"', 'legs.decode.extra_args=["{\\n}"]').deployment.legs.decode
    assert leg.env == {"X": "a\n\tb"}
    assert leg.extra_args == ("{\n}",)


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("sweep.repeats", 1000),
        ("sweep.concurrency", 1024),
        ("legs.prefill.tensor_parallel", 1024),
        ("legs.decode.max_num_seqs", 10_000_000),
        ("target.gpus_per_node", 256),
        ("target.slurm_port", 65534),
    ],
)
def test_counts_have_an_upper_bound(key: str, most: int, read: Read, refusal: Refusal) -> None:
    assert (key, most) in [(k, value) for k, value, _ in read("", f"{key}={most}").rows()]
    message = refusal("", f"{key}={most + 1}")
    assert f"{key} = {most + 1} (--set {key}): should be less than or equal to {most}" in message


def test_turns_and_lengths_have_an_upper_bound(refusal: Refusal) -> None:
    assert "less than or equal to 100" in refusal("", "sweep.turns=101")
    lengths = ",".join(str(length) for length in range(5000, 5101))
    assert "at most 100 items, not 101" in refusal("", f"sweep.prompt_lengths=[{lengths}]")


@pytest.mark.parametrize(
    ("network", "most"), [("10.77.0.0/24", 243), ("192.168.7.64/26", 51), ("172.16.0.0/12", 1000)]
)
def test_the_network_has_an_address_for_every_node(
    network: str, most: int, read: Read, refusal: Refusal
) -> None:
    def replicas(engines: int) -> list[str]:
        prefill = engines // 2
        return [
            f"target.network={network}",
            f"legs.prefill.replicas={prefill}",
            f"legs.decode.replicas={engines - prefill}",
        ]

    nodes = plan_embedded(read("", *replicas(most)).deployment, Path("/b"), cores=2).nodes
    addresses = [node.address for node in nodes]
    hosts = {str(host) for host in IPv4Network(network).hosts()} if most < 1000 else set(addresses)
    assert len(set(addresses)) == most + 1
    assert set(addresses) <= hosts
    message = refusal("", *replicas(most + 1))
    if most < 1000:
        assert f"{most + 1} replicas and the router need {most + 2} nodes" in message
        assert f"target.network {network} has room for {most + 1}" in message
        assert "legs.decode.replicas: --set legs.decode.replicas" in message
    else:
        assert "legs.decode.replicas = 501" in message


@pytest.mark.parametrize("key", ["router.ttl", "kv.stats_interval"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (".inf", "a finite number"),
        ("-.inf", "a finite number"),
        (".nan", "a finite number"),
        ("true", "a valid number"),
        ("1e2", "a valid number"),
        ('"5"', "a valid number"),
        ("0", "greater than 0"),
        ("1e+9", "a valid number"),
        ("1.0e+9", "less than or equal to 10000000"),
    ],
)
def test_seconds_are_finite_numbers(key: str, value: str, problem: str, refusal: Refusal) -> None:
    message = refusal("", f"{key}={value}")
    assert f"{key} = " in message
    assert problem in message


def test_seconds_may_be_whole_or_not(read: Read) -> None:
    assert read("", "router.ttl=90").deployment.router.ttl == 90
    assert read("", "router.ttl=0.5").deployment.router.ttl == 0.5


@pytest.mark.parametrize(
    ("text", "value"),
    [("auto", "auto"), ('"auto"', "auto"), ("64", 64), ("0", 0), ("10000000", 10_000_000)],
)
def test_the_threshold_is_tokens_or_auto(text: str, value: int | str, read: Read) -> None:
    variable, flag = "TOOLKIT__KV__RECOMPUTE_THRESHOLD", "kv.recompute_threshold"
    in_file = f"kv:\n  recompute_threshold: {text}\n"
    for loaded, source in (
        (read(in_file), "line 5"),
        (read("", **{variable: text}), f"environment {variable}"),
        (read("", f"{flag}={text}"), f"--set {flag}"),
    ):
        [(told, where)] = [(told, where) for key, told, where in loaded.rows() if key == flag]
        assert (told, type(told)) == (value, type(value))
        assert where.endswith(source)
        kept = Deployment.model_validate_json(loaded.deployment.model_dump_json())
        assert kept == loaded.deployment, "as a run's settings.json keeps it"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-1", "-1"),
        ("10000001", "10000001"),
        ("autos", "'autos'"),
        ("Auto", "'Auto'"),
        ("1.5", "1.5"),
        ("64.0", "64.0"),
        ("true", "true"),
        ('"64"', "'64'"),
        ("", "null"),
        ("[auto]", "['auto']"),
    ],
)
def test_another_threshold_is_refused_in_one_line(text: str, told: str, refusal: Refusal) -> None:
    problem = "should be a whole number of tokens from 0 to 10000000, or auto"
    variable, flag = "TOOLKIT__KV__RECOMPUTE_THRESHOLD", "kv.recompute_threshold"
    assert refusal("", f"{flag}={text}").endswith(f": {flag} = {told} (--set {flag}): {problem}")
    assert refusal("", **{variable: text}).endswith(f": {flag} = {told} (environment {variable}): {problem}")


def test_the_schema_has_both_forms_of_the_threshold() -> None:
    threshold = Deployment.model_json_schema()["$defs"]["Kv"]["properties"]["recompute_threshold"]
    assert threshold["default"] == 64
    assert threshold["anyOf"] == [
        {"type": "integer", "minimum": 0, "maximum": 10_000_000},
        {"type": "string", "const": "auto"},
    ]


@pytest.mark.parametrize(
    "network",
    [
        "127.0.0.0/24",
        "0.0.0.0/8",
        "240.0.0.0/24",
        "169.254.0.0/24",
        "192.0.2.0/24",
        "198.18.0.0/24",
        "100.64.0.0/24",
        "10.0.0.0/7",
        "172.32.0.0/24",
        "192.168.0.0/27",
        "8.8.8.0/24",
    ],
)
def test_only_private_networks_hold_nodes(network: str, refusal: Refusal) -> None:
    message = refusal("", f"target.network={network}")
    assert f"target.network = '{network}'" in message


@pytest.mark.parametrize("network", ["10.0.0.0/8", "172.31.255.0/24", "192.168.0.0/16"])
def test_private_networks_are_taken(network: str, read: Read) -> None:
    assert str(read("", f"target.network={network}").deployment.target.network) == network


@pytest.mark.parametrize("key", ["root", "engine_env", "runs_dir"])
def test_an_embedded_path_may_start_at_home(
    key: str, read: Read, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(read("", f"target.{key}=~/x").deployment.target, key) == Path("/home/me/x")
    assert "~nobody-here is no user" in refusal("", f"target.{key}=~nobody-here/x")
    assert "must not be empty" in refusal("", f'target.{key}=""')


@pytest.mark.parametrize("key", ["engine_env", "toolkit_env", "runs_dir", "hf_home"])
def test_a_path_on_the_shared_volume_is_absolute(key: str, refusal: Refusal) -> None:
    target = f"{{kind: parallelcluster, cluster_name: c, region: r, {key}: ~/x}}"
    message = refusal("", f"target={target}")
    assert f"target.{key} = '~/x' (--set target): must be an absolute path" in message
    assert "without ~" in message


def test_a_model_folder_is_written_out(refusal: Refusal) -> None:
    assert "write the whole path" in refusal("", "model.name=~/m")


def test_the_region_holds_no_control_character() -> None:
    with pytest.raises(Exception, match=r"target\.region = 'a\\x00'"):
        load(CLOUD, ['target.region="a\\0"'])
