"""What every settings model shares: frozen, and unknown keys are errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


# Strict, so that YAML's `true` or "8" is not taken for a number.
Count = Annotated[int, Field(strict=True, ge=1)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Switch = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(gt=0)]
# A word that may become a folder, a Slurm job name or a node name.
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
Text = Annotated[str, Field(strict=True, min_length=1)]
