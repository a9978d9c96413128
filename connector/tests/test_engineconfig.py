"""What is changed in an engine's configuration before its processes get it."""

from logging import getLogger
from types import SimpleNamespace
from typing import Any

import pytest

from pd_connector.engineconfig import AUTO_NOTE, install, prepare, with_generation, without_generation

LOG = getLogger("test")


def transfer(**extra: Any) -> SimpleNamespace:
    return SimpleNamespace(engine_id="decode", kv_connector="NixlConnector", kv_connector_extra_config=extra)


def test_every_start_has_its_own_id() -> None:
    first, second = transfer(), transfer()
    for one in (first, second):
        prepare(one, False, LOG)
    assert first.engine_id != second.engine_id
    assert {without_generation(one.engine_id) for one in (first, second)} == {"decode"}


def test_the_id_is_changed_once() -> None:
    one = transfer()
    prepare(one, False, LOG)
    before = one.engine_id
    prepare(one, False, LOG)
    assert one.engine_id == before


def test_nodes_of_one_engine_keep_the_id_they_share() -> None:
    one = transfer()
    prepare(one, True, LOG)
    assert one.engine_id == "decode"


@pytest.mark.parametrize("name", ["decode", "a+b", "", "x_dp1"])
def test_the_name_without_its_generation(name: str) -> None:
    assert without_generation(with_generation(name)) == (name or "engine")
    assert without_generation(with_generation(name) + "_dp3") == (name or "engine") + "_dp3"


def test_a_name_without_generation_is_itself() -> None:
    assert without_generation("decode") == "decode"


def test_auto_becomes_a_number_and_a_note() -> None:
    auto, fixed = transfer(kv_recompute_threshold="auto"), transfer(kv_recompute_threshold=100)
    for one in (auto, fixed):
        prepare(one, False, LOG)
    assert auto.kv_connector_extra_config == {"kv_recompute_threshold": 64, AUTO_NOTE: True}
    assert fixed.kv_connector_extra_config == {"kv_recompute_threshold": 100}


@pytest.mark.parametrize(
    ("connector", "changed"),
    [("NixlConnector", True), ("NixlPullConnector", True), ("OtherConnector", False)],
)
def test_only_our_connectors_configuration_is_changed(connector: str, changed: bool) -> None:
    class Arguments:
        def create_engine_config(self) -> Any:
            one = transfer()
            one.kv_connector = connector
            return SimpleNamespace(kv_transfer_config=one, parallel_config=SimpleNamespace(nnodes=1))

    install(Arguments, LOG)
    install(Arguments, LOG)
    identifier = Arguments().create_engine_config().kv_transfer_config.engine_id
    assert (identifier != "decode") == changed
    assert identifier.count("+") == changed


def test_an_engine_without_transfer_is_left_alone() -> None:
    class Arguments:
        def create_engine_config(self) -> Any:
            return SimpleNamespace(kv_transfer_config=None)

    install(Arguments, LOG)
    assert Arguments().create_engine_config().kv_transfer_config is None
