"""A value as an error message shows it: bounded in length, without control characters or Python's words."""

from __future__ import annotations

import datetime
import reprlib
from typing import Any

LONGEST = 80

_repr = reprlib.Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxother = _repr.maxlong = 2 * LONGEST
_repr.maxlist = _repr.maxtuple = _repr.maxdict = _repr.maxset = LONGEST // 4


def shown(value: Any) -> str:
    """At most about LONGEST characters, however large the value is."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, datetime.date):
        return cut(value.isoformat())
    return cut(_repr.repr(value))


def shown_key(dotted: str) -> str:
    """A dotted key bare, quoted only if it holds what a terminal would act on."""
    return cut(dotted if dotted.isprintable() else repr(dotted))


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
