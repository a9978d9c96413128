"""Layers, sources and refusals of deployment settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import SettingsError
from toolkit.settings.load import load

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "deployments" / "embedded.yaml"
SHIPPED = sorted((ROOT / "deployments").glob("*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_every_shipped_deployment_is_valid_and_named_as_its_file(file: Path) -> None:
    assert load(file).deployment.name == file.stem


@pytest.mark.parametrize(
    ("name", "model", "longest"),
    [
        ("qwen3-32b-p5en", "Qwen/Qwen3-32B", 24576),
        ("glm-5-fp8-p5en", "zai-org/GLM-5-FP8", 20480),
    ],
)
def test_published_values(name: str, model: str, longest: int) -> None:
    settings = load(ROOT / "deployments" / f"{name}.yaml").deployment
    assert settings.model.name == model
    assert (settings.model.dtype, settings.model.max_model_len) == ("bfloat16", 32768)
    for leg, port, caching in (
        (settings.legs.prefill, 8100, False),
        (settings.legs.decode, 8200, True),
    ):
        assert (leg.replicas, leg.tensor_parallel, leg.max_num_seqs) == (1, 8, 8)
        assert (leg.port, leg.side_channel_port, leg.prefix_caching) == (port, 5600, caching)
    kv = settings.kv
    assert (kv.bidirectional, kv.recompute_threshold, kv.decoder_blocks_ttl) == (True, 64, 480)
    assert (kv.backends, kv.buffer_device) == (("LIBFABRIC",), "cuda")
    assert settings.router.port == 8000
    assert settings.sweep.prompt_lengths[0] == 2048
    assert settings.sweep.prompt_lengths[-1] == longest


def test_flags_beat_environment_beats_file_beats_defaults() -> None:
    environ = {"TOOLKIT__SWEEP__TURNS": "5", "TOOLKIT__SWEEP__SEED": "7", "UNRELATED": "x"}
    loaded = load(EMBEDDED, ["sweep.turns=4"], environ)
    rows = {key: (value, source) for key, value, source in loaded.rows()}
    assert rows["sweep.turns"] == (4, "--set sweep.turns")
    assert rows["sweep.seed"] == (7, "environment TOOLKIT__SWEEP__SEED")
    assert rows["model.dtype"] == ("float32", f"file {EMBEDDED}, line 10")
    assert rows["sweep.concurrency"] == (1, "default")


def test_a_whole_list_keeps_its_source() -> None:
    rows = {key: source for key, _, source in load(EMBEDDED, ["sweep.prompt_lengths=[500, 900]"]).rows()}
    assert rows["sweep.prompt_lengths"] == "--set sweep.prompt_lengths"


def test_environment_below_an_env_section_keeps_its_case() -> None:
    loaded = load(EMBEDDED, environ={"TOOLKIT__LEGS__DECODE__ENV__UCX_TLS": "all"})
    assert loaded.deployment.legs.decode.env["UCX_TLS"] == "all"
    assert loaded.deployment.legs.prefill.env["UCX_TLS"] == "tcp"


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("kv.bidirectionl=false", ["'kv.bidirectionl'", "--set kv.bidirectionl", "'kv.bidirectional'"]),
        ("legs.prefil.port=1", ["'legs.prefil'", "'legs.prefill'"]),
        ("target.slurmport=1", ["'target.slurmport'", "'target.slurm_port'"]),
        ("zzz=1", ["'zzz'", "valid keys: ", "model"]),
        ("legs.prefill.port=eight", ["legs.prefill.port = 'eight'", "--set legs.prefill.port", "integer"]),
        ("legs.prefill.port=true", ["legs.prefill.port = true", "integer"]),
        ("legs.prefill.port=70000", ["70000", "less than or equal to 65535"]),
        ("kv.bidirectional=3", ["kv.bidirectional = 3", "boolean"]),
        ("kv.backends=[TCP]", ["'TCP'", "'LIBFABRIC' or 'UCX'"]),
        ("name=a b", ["name = 'a b'", "1 to 63 letters, digits", "at either end"]),
        ("target.kind=vm", ["target.kind = 'vm'", "'embedded' or 'parallelcluster'"]),
        ("target=vm", ["target = 'vm'", "a section of keys"]),
        ("target.network=8.8.8.0/24", ["target.network", "private network"]),
        ("target.network=10.0.0.0/30", ["target.network", "at least /26"]),
        ("sweep.prompt_lengths=[900, 800]", ["sweep.prompt_lengths", "must rise"]),
        ("sweep.prompt_lengths=[99, 4000]", ["99", "leaves nothing for the first turn"]),
        ("sweep.prompt_lengths=[9000]", ["9000", "model.max_model_len 8192"]),
        ("router.ttl=480", ["router.ttl (480 s)", "kv.decoder_blocks_ttl (480 s)"]),
        ("legs.decode.side_channel_port=8200", ["must differ"]),
        ("legs.decode.env.UCX_TLS=[a]", ["legs.decode.env.UCX_TLS", "string"]),
        ("model.name=", ["model.name", "string"]),
    ],
)
def test_a_wrong_setting_names_key_value_source_and_next_step(assignment: str, parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(EMBEDDED, [assignment])
    text = str(caught.value)
    for part in (*parts, str(EMBEDDED), "Next: "):
        assert part in text
    assert caught.value.exit_code == 2


def test_every_wrong_setting_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(EMBEDDED, ["kv.foo=1", "sweep.turns=1", "model.dtype=int8"])
    text = str(caught.value)
    assert "3 settings are wrong" in text
    assert all(key in text for key in ("kv.foo", "sweep.turns", "model.dtype"))


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("name: a\ntarget: {kind: embedded}\nmodel: {name: m}\n")
    with pytest.raises(SettingsError, match="'model.served_name' is missing"):
        load(file)
    file.write_text("name: a\ntarget: {root: x}\nmodel: {name: m, served_name: s}\n")
    with pytest.raises(SettingsError, match=r"'target\.kind' is missing"):
        load(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: a\nname: b\n", "line 2: 'name' is given twice, first on line 1"),
        (b"kv:\n  ttl: 1\n  ttl: 2\n", "'kv.ttl' is given twice"),
        (b"name: [a\n", "line 2"),
        (b"", "holds no settings"),
        (b"- a\n", "holds no settings"),
        (b"name: \xff\n", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "d.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        load(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_a_flag_that_is_no_assignment() -> None:
    with pytest.raises(SettingsError, match="not KEY=VALUE"):
        load(EMBEDDED, ["kv.bidirectional"])
