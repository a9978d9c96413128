"""rows.jsonl and client.json as a killed client or a full disk may leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.bench.row_file import RowFile
from toolkit.errors import ToolkitError


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"attempts": "many"}', b'{"a": 1}', b""])
def test_a_damaged_client_json_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "client.json").write_bytes(content)
    with pytest.raises(ToolkitError, match="client.json is damaged"):
        RowFile(tmp_path / "rows.jsonl", 2)


def test_lines_that_are_no_rows_are_dropped_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xff\n{"leg": "off"}\n{"le')
    assert RowFile(path, 2).complete == frozenset()
    assert path.read_bytes() == b""
    assert capsys.readouterr().err.count("dropped a line of") == 3


def test_attempts_count_from_one(tmp_path: Path) -> None:
    attempts = [RowFile(tmp_path / "rows.jsonl", 2).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
