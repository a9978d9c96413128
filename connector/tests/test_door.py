"""Parameters that vLLM could not carry to its engine."""

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pd_connector.door import MOST_LEVELS, MOST_VALUES, check, install

HANDLE = {
    "do_remote_decode": True,
    "remote_block_ids": [[1, 2, 3]],
    "remote_blocks_expiry_time": 1e9,
    "remote_host": "zürich",
    "remote_port": None,
    "pd_proof": {"format": 2, "digests": "AA=="},
    "pd_release": [],
}
WIDEST = {"a": (1 << 64) - 1, "b": -(1 << 63), "c": True, "d": 0.5}


def nested(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("value", [HANDLE, None, {}, WIDEST])
def test_what_can_be_carried_passes(value: Any) -> None:
    check(value)


@pytest.mark.parametrize("kind", ["list", "object"])
def test_levels_are_counted(kind: str) -> None:
    check(nested(MOST_LEVELS, kind))
    for levels in (MOST_LEVELS + 1, 100_000):
        with pytest.raises(ValueError, match=f"more than {MOST_LEVELS} lists or objects"):
            check(nested(levels, kind))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r'{"a": "\ud800"}', "no valid Unicode"),
        (r'{"a": [{"\udfff": 1}]}', "no valid Unicode"),
        ('{"a": 18446744073709551616}', "64 bits"),
        ('{"a": [-9223372036854775809]}', "64 bits"),
    ],
)
def test_what_cannot_be_carried_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check(json.loads(text))
    assert "kv_transfer_params" in str(caught.value)


@pytest.mark.parametrize("how", ["ids", "groups", "members"])
def test_values_are_counted(how: str) -> None:
    make: dict[str, Callable[[int], Any]] = {
        "ids": lambda count: {"a": [list(range(count))]},
        "groups": lambda count: {"a": [[]] * count},
        "members": lambda count: {str(number): 1 for number in range(count // 2)},
    }
    check(make[how](MOST_VALUES))
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES} values"):
        check(make[how](MOST_VALUES + 2))


def test_vllms_processor_is_given_only_what_passes() -> None:
    class Processor:
        def process_inputs(self, request_id: str, prompt: str, params: Any, priority: int = 0) -> Any:
            return request_id, prompt, priority

    install(Processor, KeyError, logging.getLogger())
    once = Processor.process_inputs
    install(Processor, KeyError, logging.getLogger())
    assert Processor.process_inputs is once
    for extra in (None, {}, {"kv_transfer_params": None}, {"kv_transfer_params": HANDLE}, {"other": 1 << 99}):
        params = SimpleNamespace(extra_args=extra)
        assert Processor().process_inputs("r", "p", params=params, priority=1) == ("r", "p", 1)
        assert Processor().process_inputs("r", "p", params) == ("r", "p", 0)
    assert Processor().process_inputs("r", "p", SimpleNamespace()) == ("r", "p", 0)
    odd = SimpleNamespace(extra_args={"kv_transfer_params": {"a": 1 << 99}})
    with pytest.raises(KeyError, match="64 bits"):
        Processor().process_inputs("r", "p", odd)


@pytest.mark.parametrize(
    "processor", [SimpleNamespace(), SimpleNamespace(process_inputs=lambda request: None)]
)
def test_a_processor_of_another_shape_is_left_alone_and_said(
    processor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(vars(processor))
    install(processor, KeyError, logging.getLogger())
    assert vars(processor) == before
    assert "not checked" in caplog.text
