"""Refuses, in the API server, KV parameters that vLLM could not carry to its engine, or that would end it.

vLLM sends them on as MessagePack and, inside the sampling parameters, to its workers as a pickle: a text that
is no Unicode or an integer of more than 64 bits fails on the way with an empty 500, and some 500 levels of
lists end the engine.
"""

import functools
import inspect
from collections.abc import Mapping
from logging import Logger
from typing import Any

MOST_LEVELS = 16
"""Of lists and objects within each other; a handle has three."""
MOST_VALUES = 1 << 18
"""On one level. A handle of a million tokens that lists its blocks has a quarter of it."""
_WIDEST = range(-(1 << 63), 1 << 64)


def check(params: object) -> None:
    """Raises ValueError that says what is wrong."""
    level = [params]
    for _ in range(MOST_LEVELS + 1):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
        if len(level) > MOST_VALUES:
            raise ValueError(f"kv_transfer_params has more than {MOST_VALUES} values")
    raise ValueError(f"kv_transfer_params has more than {MOST_LEVELS} lists or objects within each other")


def _parts(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("kv_transfer_params has a text that is no valid Unicode") from None
    elif isinstance(value, int) and value not in _WIDEST:
        raise ValueError("kv_transfer_params has an integer of more than 64 bits")
    return []


def install(processor: Any, refusal: type[Exception], logger: Logger) -> None:
    """Let `processor`, vLLM's class InputProcessor, check what it is given; `refusal` is what vLLM's server
    answers with 400. May be called again."""
    stock = getattr(processor, "process_inputs", None)
    if hasattr(stock, "pd_connector_stock"):
        return
    if stock is None or "params" not in inspect.signature(stock).parameters:
        logger.warning("pd-connector: this vLLM's input processor is not known: parameters are not checked")
        return
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def process_inputs(*args: Any, **kwargs: Any) -> Any:
        params = signature.bind(*args, **kwargs).arguments["params"]
        extra = getattr(params, "extra_args", None)
        if extra and extra.get("kv_transfer_params"):
            try:
                check(extra["kv_transfer_params"])
            except ValueError as error:
                raise refusal(str(error)) from None
        return stock(*args, **kwargs)

    process_inputs.pd_connector_stock = stock  # type: ignore[attr-defined]
    processor.process_inputs = process_inputs
