"""What the stub finds in a body without parsing it is what a parser finds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import orjson
import pytest

from bench.router.handles import handle
from bench.router.pattern import recorded
from bench.router.seen import WINDOW, read_body

HANDLE = handle(recorded("chat-decode-stream").events()[-1]["kv_transfer_params"], 4000)
PREFILLS = handle(recorded("chat-prefill").document()["kv_transfer_params"], 4000)
TRAP = '"kv_transfer_params":{"pd_lease":"x"},"stream":true'


def pieces(body: bytes, seed: int) -> list[bytes]:
    """As they come from a socket."""
    source = random.Random(seed)
    cuts = sorted(source.randrange(len(body)) for _ in range(source.randint(0, 12)))
    return [body[start:end] for start, end in itertools.pairwise([0, *cuts, len(body)])]


@pytest.mark.parametrize("place", ["first", "last", "middle"])
@pytest.mark.parametrize("length", [10, WINDOW, 3 * WINDOW, 9 * WINDOW])
@pytest.mark.parametrize(
    ("params", "lease", "keeps"),
    [
        (HANDLE | {"pd_lease": "a-lease"}, b"a-lease", False),
        (PREFILLS, PREFILLS["pd_lease"].encode(), True),
        (PREFILLS | {"pd_retain": False}, PREFILLS["pd_lease"].encode(), False),
        ({"pd_retain": True}, None, True),
        ({"do_remote_decode": True, "do_remote_prefill": False}, None, False),
        (None, None, False),
    ],
    ids=["readback", "pull", "pull-once", "local", "miss", "none"],
)
def test_parameters_are_found_wherever_they_are(
    params: dict[str, Any] | None, lease: bytes | None, keeps: bool, length: int, place: str
) -> None:
    # A text may hold anything: inside JSON its quotes are escaped.
    history: dict[str, Any] = {"messages": [{"content": TRAP + "x" * length + TRAP}]}
    member: dict[str, Any] = {"kv_transfer_params": params}
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    body = {
        "first": member | asked | history,
        "last": history | asked | member,
        "middle": {"a": "y" * length} | asked | member | {"b": "z" * length} | history,
    }[place]
    raw = orjson.dumps(body)
    for seed in range(5):
        found = read_body(pieces(raw, seed))
        assert (found.lease, found.keeps) == (lease, keeps)
        assert found.held == ((params or {}).get("pd_proof") or {}).get("tokens", 0)
        assert found.size == len(raw) - (len(orjson.dumps(params)) if params else 0)
        assert (found.stream, found.usage) == (True, True)


def test_a_plain_request_asks_for_nothing() -> None:
    found = read_body([b'{"prompt":"', TRAP.replace('"', '\\"').encode(), b'","stream":false}'])
    assert (found.stream, found.usage, found.keeps, found.lease, found.releases) == (
        False,
        False,
        False,
        None,
        (),
    )


def test_leases_to_let_go_of() -> None:
    raw = orjson.dumps({"prompt": "x", "kv_transfer_params": {"pd_retain": True, "pd_release": ["a", "b"]}})
    assert read_body([raw]).releases == ("a", "b")


def test_parameters_that_are_no_object_are_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        read_body([b'{"kv_transfer_params":[1],"stream":true}'])
