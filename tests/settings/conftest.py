"""A settings file with what is required, and more below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import SettingsError
from toolkit.settings.load import Loaded, load

REQUIRED = "name: a\ntarget: {kind: embedded}\nmodel: {name: m, served_name: s}\n"  # lines 1 to 3


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Loaded]:
    """Loads `more` below the required settings, with assignments and environment."""

    def get(more: str = "", *assignments: str, **environ: str) -> Loaded:
        file = tmp_path / "d.yaml"
        file.write_text(REQUIRED + more, encoding="utf-8")
        return load(file, assignments, environ)

    return get


@pytest.fixture
def refusal(read: Callable[..., Loaded]) -> Callable[..., str]:
    """The message of the SettingsError that the same settings must raise."""

    def get(more: str = "", *assignments: str, **environ: str) -> str:
        with pytest.raises(SettingsError) as caught:
            read(more, *assignments, **environ)
        assert caught.value.exit_code == 2
        assert caught.value.next_step
        return caught.value.what

    return get
