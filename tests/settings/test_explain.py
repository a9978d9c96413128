"""What the user reads: short, in their words, with the source of every value involved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.settings.load import Loaded
from toolkit.settings.shown import LONGEST, shown, shown_key
from toolkit.settings.source import Given, merge

Refusal = Callable[..., str]
Read = Callable[..., Loaded]


def test_the_first_twenty_of_many_faults_are_told(refusal: Refusal) -> None:
    message = refusal("".join(f"k{i}: 1\n" for i in range(20_000)))
    lines = message.splitlines()
    assert lines[0].endswith("20000 settings are wrong.")
    assert [line.split()[2] for line in lines[1:-1]] == [f"'k{i}'" for i in range(20)]
    assert lines[-1] == "... and 19980 more"


def test_twenty_faults_are_all_told(refusal: Refusal) -> None:
    lines = refusal("".join(f"k{i}: 1\n" for i in range(20))).splitlines()
    assert len(lines) == 21
    assert "'k19'" in lines[-1]


@pytest.mark.parametrize(
    "assignment",
    [
        "name=" + "x" * 100_000,
        "z" * 100_000 + "=1",
        "kv=[" + "x, " * 50_000 + "]",
        "router.ttl=" + "9" * 4000,
    ],
    ids=["text", "key", "list", "number"],
)
def test_a_long_value_is_cut(assignment: str, refusal: Refusal) -> None:
    assert len(refusal("", assignment)) < 600


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("a\x1bb", "'a\\x1bb'"),
        ({"a": [1]}, "{'a': [1]}"),
        ("x" * 78, repr("x" * 78)),
        ("x" * 79, "'" + "x" * 78 + "…"),
    ],
)
def test_a_value_as_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_value_that_grows_without_end_is_shown_short() -> None:
    bomb: list[object] = ["x"]
    for _ in range(30):
        bomb = [bomb] * 10
    assert len(shown(bomb)) <= LONGEST
    assert shown_key("a\nb") == "'a\\nb'"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("sweep: {prompt_lengths: 5}\n", "sweep.prompt_lengths = 5 (file {file}, line 4): should be a list"),
        ("kv: 5\n", "kv = 5 (file {file}, line 4): should be a section of keys"),
        ("legs:\n  decode: [x]\n", "legs.decode = ['x'] (file {file}, line 5): should be a section of keys"),
        (
            "legs: {decode: {env: x}}\n",
            "legs.decode.env = 'x' (file {file}, line 4): should be a section of keys",
        ),
        (
            "kv: {backends: []}\n",
            "kv.backends = [] (file {file}, line 4): should have at least 1 item, not 0",
        ),
        ("'': 1\n", "unknown key '' (file {file}, line 4); valid keys: kv"),
        ('"a\\eb": 1\n', "unknown key 'a\\x1bb' (file {file}, line 4); valid keys: kv"),
        (
            "legs: {decode: {env: {a b: c}}}\n",
            "legs.decode.env: the name 'a b' (file {file}, line 4) must be letters, digits and '_', "
            "not starting with a digit",
        ),
        ("sweep:\n  turns:\n", "sweep.turns = null (file {file}, line 5): should be a valid integer"),
        ("legs: {decode: {extra_args: }}\n", "extra_args = null (file {file}, line 4): should be a list"),
        ("legs: {decode: {env: {X: }}}\n", "env.X = null (file {file}, line 4): should be a valid string"),
    ],
)
def test_words_are_the_users(more: str, message: str, refusal: Refusal, tmp_path: Path) -> None:
    told = refusal(more)
    assert message.replace("{file}", str(tmp_path / "d.yaml")) in told
    assert not any(word in told for word in ("tuple", "instance", "dictionary", "None"))


@pytest.mark.parametrize(
    "name",
    ["TOOLKIT__", "TOOLKIT__KV__", "TOOLKIT____X", "TOOLKIT__LEGS__DECODE__ENV__", "TOOLKIT____ENV__X"],
)
def test_a_variable_without_a_key_names_no_setting(name: str, refusal: Refusal) -> None:
    assert refusal("", **{name: "1"}) == f"the environment variable {name} names no setting."


@pytest.mark.parametrize("assignment", ["=1", " =1", ".kv=1", "kv..ttl=1", "kv. =1", "kv"])
def test_a_flag_without_a_key_names_no_setting(assignment: str, refusal: Refusal) -> None:
    assert refusal("", assignment) == f"--set {assignment}: is not KEY=VALUE."


@pytest.mark.parametrize("key", ["kv", "legs", "legs.decode", "legs.decode.env", "router", "sweep"])
def test_an_empty_section_has_its_defaults_and_keeps_its_source(key: str, read: Read) -> None:
    nothing = {row[0]: row[1] for row in read().rows()}
    parts = key.split(".")
    more = "\n".join("  " * depth + part + ":" for depth, part in enumerate(parts)) + "\n"
    loaded = read(more)
    assert {row[0]: row[1] for row in loaded.rows()} == nothing
    sources = {source for name, _, source in loaded.rows() if (name + ".").startswith(key + ".")}
    assert sources == {f"file {loaded.file}, line {3 + len(parts)}"}


def test_an_empty_section_of_a_flag_replaces_that_of_the_file(read: Read) -> None:
    more = "legs:\n  decode:\n    env: {X: 1}\n"
    assert read(more).deployment.legs.decode.env == {"X": "1"}
    assert read(more, "legs.decode.env=").deployment.legs.decode.env == {}
    assert read("kv:\n", "kv.bidirectional=false").deployment.kv.bidirectional is False


def test_an_empty_section_that_is_required_is_missing(refusal: Refusal) -> None:
    assert "'target' is missing (--set target gives nothing)" in refusal("", "target=")


@pytest.mark.parametrize(
    ("more", "assignments", "sources"),
    [
        (
            "kv:\n  decoder_blocks_ttl: 100\n",
            [],
            "(router.ttl: default; kv.decoder_blocks_ttl: file {file}, line 5)",
        ),
        ("", ["router.ttl=500"], "(router.ttl: --set router.ttl; kv.decoder_blocks_ttl: default)"),
        (
            "sweep:\n  prompt_lengths: [40000]\n",
            ["sweep.output_tokens=8"],
            "(sweep.prompt_lengths: file {file}, line 5; sweep.output_tokens: --set sweep.output_tokens; "
            "model.max_model_len: default)",
        ),
        (
            "sweep:\n  turns: 50\n",
            [],
            "(sweep.prompt_lengths: default; sweep.turns: file {file}, line 5; sweep.output_tokens: default; "
            "sweep.turn_tokens: default)",
        ),
        (
            "legs:\n  decode:\n    port: 5600\n",
            [],
            "(legs.decode.port: file {file}, line 6; legs.decode.side_channel_port: default)",
        ),
    ],
)
def test_values_that_exclude_each_other_name_their_sources(
    more: str, assignments: list[str], sources: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert refusal(more, *assignments).endswith(sources.replace("{file}", str(tmp_path / "d.yaml")))


def test_a_layer_replaces_what_is_above_and_below_its_keys() -> None:
    one, two = Given(1, "one"), Given(2, "two")
    assert merge([{("a", "b"): one, ("a", "c", "d"): one, ("e",): one}, {("a",): two}]) == {
        ("e",): one,
        ("a",): two,
    }
    assert merge([{("a",): one}, {("a", "b", "c"): two}]) == {("a", "b", "c"): two}
    assert merge([{("a", "b"): one}, {("a", "c"): two}]) == {("a", "b"): one, ("a", "c"): two}
    assert merge([{("a", "b"): one}, {("a", "b"): two}]) == {("a", "b"): two}


def test_a_list_of_wrong_items_is_not_also_too_short(refusal: Refusal) -> None:
    message = refusal("", "kv.backends=[TCP]")
    assert "kv.backends.0 = 'TCP' (--set kv.backends)" in message
    assert len(message.splitlines()) == 1
