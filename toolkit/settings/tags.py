"""Tags of everything the cluster is made of: what IAM, which takes the least, takes too."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from toolkit.settings.base import EnvironmentValue, Text

LONGEST_NAME, LONGEST_VALUE = 128, 256
SIGNS = "_.:/=+-@"
RESERVED = ("parallelcluster:", "aws:")


def _as_iam_takes_them(tags: dict[str, str]) -> dict[str, str]:
    """IAM's API reference, data type Tag. It takes two names that differ in case only for one."""
    seen: dict[str, str] = {}
    for name, value in tags.items():
        _check_text("name", name, name, LONGEST_NAME)
        _check_text("value", name, value, LONGEST_VALUE)
        folded = name.lower()
        if folded.startswith(RESERVED):
            raise ValueError(f"the tag name {name} is reserved")
        if folded in seen:
            raise ValueError(f"the tag names {seen[folded]} and {name} differ in case only; IAM refuses both")
        seen[folded] = name
    return tags


def _check_text(what: str, name: str, text: str, longest: int) -> None:
    place = f"the {what} of tag {name[:40]!a}"
    if len(text) > longest:
        raise ValueError(f"{place} has {len(text)} characters; AWS takes {longest}")
    for character in text:
        if not _fits(character):
            shown = f"'{character}'" if character.isprintable() else f"U+{ord(character):04X}"
            raise ValueError(f"{place} holds {shown}; AWS takes letters, digits, blanks and {SIGNS}")


def _fits(character: str) -> bool:
    return character in SIGNS or unicodedata.category(character)[0] in "LN" or character == " "


Tags = Annotated[dict[Text, EnvironmentValue], AfterValidator(_as_iam_takes_them)]
