"""What every settings model shares: frozen, unknown keys are errors, values are strict and bounded."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

DISAGREE = "settings_disagree"

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
# What a pattern allows, as an error says it.
ALLOWED = {
    NAME_PATTERN: "must be 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at either end",
    VARIABLE_PATTERN: "must be letters, digits and '_', not starting with a digit",
}


def pattern(expression: str, allowed: str) -> str:
    """`expression`, after noting what it allows for the error text."""
    ALLOWED[expression] = f"must be {allowed}"
    return expression


def aws_id(kind: str) -> Any:
    """The field of an AWS resource id, such as subnet-0123456789abcdef0; older ones have 8 digits."""
    expression = pattern(
        rf"^{kind}-([0-9a-f]{{8}}|[0-9a-f]{{17}})$",
        f"{kind}- and 17 hex digits, such as {kind}-0123456789abcdef0",
    )
    return Field(strict=True, pattern=expression)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def disagree(message: str, *keys: str) -> PydanticCustomError:
    """The error of values that exclude each other; `keys`, dotted and below the section that raises it,
    are those whose sources the user is told."""
    return PydanticCustomError(DISAGREE, "{message}", {"message": message, "keys": keys})


def _without_control(text: str, harmless: str = "") -> str:
    """Refuses what an argument, a file name or a terminal can't hold: control characters, half characters."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in harmless:
            raise ValueError(f"holds the character U+{ord(character):04X}, which can't be used")
    return text


def _words(text: str) -> str:
    return _without_control(text, harmless="\n\t")


def _path_text(path: Any) -> Any:
    """Before `Path`, which takes an empty text for the current folder."""
    if path == "":
        raise ValueError("must not be empty")
    if isinstance(path, str | Path):
        _without_control(str(path))
    return path


# Strict, so that YAML's `true` or "8" is not taken for a number; bounded far above what any system has.
Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Switch = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=10_000_000, allow_inf_nan=False)]
# A word that may become a folder, a Slurm job name or a node name.
Name = Annotated[str, Field(strict=True, pattern=NAME_PATTERN)]
Text = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_without_control)]
# Quoted wherever it goes, so line breaks and tabs, as in JSON arguments, do no harm.
Word = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_words)]
EnvironmentValue = Annotated[str, Field(strict=True), AfterValidator(_words)]
Folder = Annotated[Path, BeforeValidator(_path_text)]
