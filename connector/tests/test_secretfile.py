"""Where the engines' shared secret comes from."""

from pathlib import Path

import pytest

from pd_connector.secretfile import SECRET_FILE, read_secret


def test_the_secret_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_FILE, raising=False)
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("first\n")
    other.write_text("second")
    assert read_secret(None) is None
    assert read_secret(str(one)) == b"first"
    monkeypatch.setenv(SECRET_FILE, str(other))
    assert read_secret(str(one)) == b"second"


def test_a_secret_that_was_meant_is_never_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_FILE, raising=False)
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(ValueError, match="empty"):
        read_secret(str(tmp_path / "empty"))
    with pytest.raises(OSError):
        read_secret(str(tmp_path / "absent"))
