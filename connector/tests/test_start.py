"""What an engine does at start: refuse rather than serve unsafely; and the option left off."""

import os
import re
import subprocess
import sys
from logging import getLogger
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import Pair, transfer

pytestmark = pytest.mark.engine

SERVE = """
import sys, vllm
vllm.__version__ = "9.9.0"
from vllm.entrypoints.cli.main import main
sys.argv = ["vllm", "serve", "nowhere"]
main()
"""


def run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_unknown_version_stops_the_start() -> None:
    ended = run(SERVE)
    assert ended.returncode != 0
    assert (
        ended.stderr.strip()
        .splitlines()[-1]
        .startswith("pd_connector.versions.RefusedError: pd-connector does not serve vLLM 9.9.0")
    )


def test_the_override_lets_it_go_on() -> None:
    ended = run(SERVE, PD_CONNECTOR_ALLOW_UNTESTED="1")
    assert "RefusedError" not in ended.stderr
    assert "going on because PD_CONNECTOR_ALLOW_UNTESTED=1" in ended.stdout + ended.stderr


def test_a_connector_without_its_plugin_stops_the_start(model: Path, tmp_path: Path) -> None:
    settings = {**engines.CONNECTOR, "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    with (
        pytest.raises(AssertionError, match="unplugged did not start"),
        engines.engine("unplugged", model, 0, tmp_path, settings, {"VLLM_PLUGINS": ""}),
    ):
        pytest.fail("it serves")
    assert "its vLLM plugin was not loaded" in (tmp_path / "unplugged.log").read_text()


def test_the_stock_name_is_ours_even_without_the_module_path() -> None:
    program = """
import pd_connector.plugin as plugin
plugin.register()
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as factory
for name in ("NixlConnector", "NixlPullConnector"):
    print(factory.get_connector_class_by_name(name).__module__)
"""
    assert run(program).stdout.split()[-2:] == ["pd_connector.connector"] * 2


def test_every_agent_of_nixl_is_made_with_the_delay() -> None:
    """The real bindings: what NIXL's own API makes has our poll timeout, once, however often we are asked."""
    from nixl import _api, _bindings

    from pd_connector import progress

    seen: list[int] = []
    stock = _bindings.nixlAgent

    class Recording(stock):  # type: ignore[misc]
        def __init__(self, name: str, config: Any) -> None:
            seen.append(config.pthrDelay)
            super().__init__(name, config)

    _bindings.nixlAgent = Recording
    try:
        _api.nixl_agent("before", _api.nixl_agent_config(backends=[]))
        progress.let_sleep(getLogger("test"))
        progress.let_sleep(getLogger("test"))
        _api.nixl_agent("after", _api.nixl_agent_config(backends=[]))
    finally:
        _bindings.nixlAgent = stock
    assert seen == [0, progress.DELAY_US]


def test_the_pair_was_made_with_the_delay(pair: Pair) -> None:
    for one in (pair.prefill, pair.decode):
        assert one.text().count("progress thread sleeps: pthrDelay=1000 us (NIXL had set 0)") == 1


def test_prefill_without_the_option_computes(pair: Pair, model: Path, tmp_path: Path) -> None:
    prompt = engines.words(150, 99)
    handle = pair.decode.complete(prompt, 40, {"pd_retain": True})["kv_transfer_params"]
    extra = {"backends": ["UCX"]}
    settings = {**engines.CONNECTOR, "kv_role": "kv_producer", "kv_buffer_device": "cpu"}
    settings["kv_connector_extra_config"] = extra
    with engines.engine("one-way", model, 0, tmp_path, settings) as one_way:
        first = one_way.complete(prompt, 1, {**handle, **engines.FIRST_TURN})
        assert engines.produced(first) == pair.recompute(prompt, 1)
        assert "reason=bidirectional-off" in one_way.text()
        second = pair.decode.complete(prompt, 4, first["kv_transfer_params"])
        assert engines.produced(second) == pair.recompute(prompt, 4)


def test_an_automatic_threshold_is_measured_and_told(pair: Pair, model: Path, tmp_path: Path) -> None:
    settings = transfer("prefill", kv_recompute_threshold="auto")
    with engines.engine("auto", model, 0, tmp_path, settings) as auto:
        for seed in range(8):
            prompt = engines.words(400, 700 + seed)
            handle = pair.decode.complete(prompt, 4, {"pd_retain": True})["kv_transfer_params"]
            more = [*prompt, *engines.words(100, 800 + seed)]
            first = auto.complete(more, 1, {**handle, **engines.FIRST_TURN})
            assert engines.produced(first) == pair.recompute(more, 1)
            pair.decode.leases("release", handle["pd_lease"])
        said = re.search(r"kv_recompute_threshold=(\d+) tokens (.*)", auto.text())
        assert said, "the figures were logged"
        figures = {name: float(value) for name, value in re.findall(r"(\w+)=(\S+)", said[2])}
        assert len(figures) == 4
        assert 0 < figures["prefill_ms_per_token"] < 100
        assert figures.pop("read_overhead_ms") >= 0
        assert all(value > 0 for value in figures.values()), figures
        assert auto.metric("pd_connector:kv_recompute_threshold_tokens{") >= 1
