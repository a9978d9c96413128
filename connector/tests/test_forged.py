"""Real engines: handles that name another place for an engine, where somebody says yes to every question."""

import threading
import zlib
from collections.abc import Iterator
from typing import Any

import engines
import pytest
import zmq
from conftest import Pair

from pd_connector.sidechannel import MARK

pytestmark = pytest.mark.engine


class YesSayer:
    """Grants every read of blocks that are not its own."""

    def __init__(self) -> None:
        self.asked = 0
        self.port = 0
        self._ready, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "YesSayer":
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)

    def _serve(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as front:
            front.setsockopt(zmq.LINGER, 0)
            self.port = front.bind_to_random_port("tcp://127.0.0.1")
            self._ready.set()
            while not self._over.is_set():
                if front.poll(100):
                    frames = front.recv_multipart()
                    question = frames[-1].startswith(MARK)
                    self.asked += question
                    front.send_multipart([*frames[:-1], b"1" if question else b"?"])


@pytest.fixture
def yes_sayer() -> Iterator[YesSayer]:
    with YesSayer() as started:
        yield started


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> list[int]:
    return engines.words(230, zlib.crc32(request.node.name.encode()))


def kept(pair: Pair, prompt: list[int]) -> dict[str, Any]:
    handle = pair.decode.complete(prompt, 20, {"pd_retain": True})["kv_transfer_params"]
    assert isinstance(handle, dict)
    return handle


def forged(pair: Pair, prompt: list[int], port: int) -> dict[str, Any]:
    """The prompt's proof beside the blocks of another conversation."""
    other = kept(pair, [prompt[0] ^ 1, *prompt[1:]])
    return {**kept(pair, prompt), "pd_blocks": other["pd_blocks"], "remote_port": port, **engines.FIRST_TURN}


def test_a_known_engine_is_not_read_on_the_word_of_somebody_else(
    pair: Pair, prompt: list[int], yes_sayer: YesSayer
) -> None:
    """Nor does prefill's prefix cache get anything of it."""
    known = engines.words(150, 7)
    pair.prefill.complete(known, 1, {**kept(pair, known), **engines.FIRST_TURN})
    handle = forged(pair, prompt, yes_sayer.port)
    expected = pair.recompute(prompt, 6)
    first = pair.prefill.complete(prompt, 6, handle)
    assert yes_sayer.asked == 1
    assert engines.produced(first) == expected
    assert first["kv_transfer_params"]["pd_read"] == 0
    assert engines.produced(pair.prefill.complete(prompt, 6)) == expected
    assert pair.prefill.healthy()
    # And the engine itself is read as before.
    again = engines.words(150, 8)
    read = pair.prefill.complete(again, 1, {**kept(pair, again), **engines.FIRST_TURN})
    assert read["kv_transfer_params"]["pd_read"] > 0


def test_decode_pulls_nothing_on_the_word_of_somebody_else(
    pair: Pair, prompt: list[int], yes_sayer: YesSayer
) -> None:
    """Its policy is `fail`."""
    known = engines.words(150, 9)
    pair.turn(known, 2)
    true = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    other = pair.prefill.complete([prompt[0] ^ 1, *prompt[1:]], 1, engines.FIRST_TURN)["kv_transfer_params"]
    handle = {**true, "pd_blocks": other["pd_blocks"], "remote_port": yes_sayer.port}
    status, text = pair.decode.post("/v1/completions", engines.completion(prompt, 4, handle))
    assert status == 500, text
    assert yes_sayer.asked > 0
    assert engines.produced(pair.decode.complete(prompt, 4, true)) == pair.recompute(prompt, 4)
