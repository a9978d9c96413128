"""The stream with its handle, on chunk sequences of every shape."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from pd_connector import streaming
from pd_connector.splice import DONE, Watch, splice, with_member
from pd_connector.versions import RefusedError

HANDLE = {"a": [[1, 2]], "b": None, "c": "ü"}
MEMBER = ',"kv_transfer_params":{"a":[[1,2]],"b":null,"c":"\\u00fc"}'
HEAD = {"id": "i", "object": "o", "created": 1, "model": "m"}


@dataclass
class Output:
    finished: bool
    kv_transfer_params: dict[str, Any] | None = None


def chunk(text: str) -> str:
    return f"data: {json.dumps({'x': text}, separators=(',', ':'))}\n\n"


class Server:
    """Yields the first chunk after each output, the rest when the outputs have ended."""

    def __init__(self, outputs: list[Any], chunks: list[str]) -> None:
        self.outputs, self.chunks = outputs, chunks
        self.seen: list[str] = []
        self.closed = False

    async def _outputs(self) -> AsyncIterator[Any]:
        for output in self.outputs:
            self.seen.append("output")
            yield output

    async def _generate(self, watch: Watch) -> AsyncGenerator[str, None]:
        rest = list(self.chunks)
        try:
            async for _ in watch:
                yield rest.pop(0)
            for one in rest:
                yield one
        finally:
            self.closed = True

    def run(self, stop_after: int | None = None) -> list[str]:
        async def collect() -> list[str]:
            watch = Watch(self._outputs())
            out: list[str] = []
            stream = splice(self._generate(watch), watch, HEAD)
            async for one in stream:
                out.append(one)
                self.seen.append("chunk")
                if len(out) == stop_after:
                    await stream.aclose()
                    break
            return out

        return asyncio.run(collect())


def test_the_last_chunk_before_done_gets_the_handle() -> None:
    out = Server([Output(False), Output(True, HANDLE)], [chunk("1"), chunk("2"), DONE]).run()
    assert out == [chunk("1"), chunk("2")[:-3] + MEMBER + "}\n\n", DONE]
    assert json.loads(out[1].removeprefix("data: "))["kv_transfer_params"] == HANDLE


def test_a_usage_chunk_is_the_last_one() -> None:
    out = Server([Output(True, HANDLE)], [chunk("1"), chunk("usage"), DONE]).run()
    assert [MEMBER in one for one in out] == [False, True, False]


def test_outputs_of_several_prompts_come_in_pairs() -> None:
    out = Server([(0, Output(True, HANDLE))], [chunk("1"), DONE]).run()
    assert MEMBER in out[0]


def test_nothing_is_held_back_before_the_last_output() -> None:
    server = Server([Output(False), Output(False), Output(True, HANDLE)], [chunk(str(n)) for n in range(3)])
    server.run()
    assert server.seen == ["output", "chunk", "output", "chunk", "output", "chunk"]


def test_without_a_handle_the_stream_is_unchanged() -> None:
    chunks = [chunk("1"), chunk("2"), DONE]
    assert Server([Output(False), Output(True)], chunks).run() == chunks


@pytest.mark.parametrize("after", [[], [DONE]], ids=["cut", "done"])
def test_an_error_gets_no_handle(after: list[str]) -> None:
    chunks = [chunk("1"), 'data: {"error":{}}\n\n', *after]
    assert Server([Output(True, HANDLE)], chunks).run() == chunks


def test_a_last_chunk_of_another_form_is_followed_by_one_of_ours() -> None:
    out = Server([Output(True, HANDLE)], [": comment\n\n", DONE]).run()
    assert out[0].startswith(": comment\n\ndata: {")
    extra = json.loads(out[0].split("data: ")[1])
    assert extra == {**HEAD, "choices": [], "kv_transfer_params": HANDLE}


def test_a_client_that_leaves_closes_the_servers_generator() -> None:
    server = Server([Output(False), Output(True, HANDLE)], [chunk("1"), chunk("2"), DONE])
    server.run(stop_after=1)
    assert server.closed


def test_a_chunk_that_cannot_hold_a_member() -> None:
    assert with_member("data: [1]\n\n", HANDLE) is None
    assert with_member('data: {"error":1}\n\n', HANDLE) is None


class Model:
    model_fields: dict[str, Any] = {}  # noqa: RUF012


class Native:
    model_fields = {"kv_transfer_params": None}  # noqa: RUF012


@dataclass
class Request:
    kv_transfer_params: dict[str, Any] | None


def serving() -> Any:
    class Serving:
        async def stream(
            self, request: Any, result_generator: Any, request_id: str, model_name: str, num_prompts: int = 1
        ) -> AsyncGenerator[str, None]:
            async for _ in result_generator:
                yield chunk(request_id)
            yield DONE

    return Serving


async def one_output() -> AsyncIterator[Output]:
    yield Output(True, HANDLE)


def test_a_request_without_parameters_gets_the_stock_generator() -> None:
    cls = serving()
    stock = cls.stream
    assert streaming.wrap(cls, "stream", Model, "k") == "ours"
    for params, prompts in ((None, 1), ({}, 1), ({"x": 1}, 2)):
        generator = cls().stream(Request(params), one_output(), "id", "m", num_prompts=prompts)
        assert generator.ag_code is stock.__code__
        asyncio.run(generator.aclose())


def test_a_request_with_parameters_gets_the_handle() -> None:
    cls = serving()
    streaming.wrap(cls, "stream", Model, "k")

    async def collect() -> list[str]:
        return [one async for one in cls().stream(Request({"x": 1}), one_output(), "id", model_name="m")]

    assert MEMBER in asyncio.run(collect())[0]


def test_wrapping_twice_wraps_once() -> None:
    cls = serving()
    streaming.wrap(cls, "stream", Model, "k")
    wrapped = cls.stream
    assert streaming.wrap(cls, "stream", Model, "k") == "ours"
    assert cls.stream is wrapped


def test_a_vllm_that_does_it_itself_is_left_alone() -> None:
    cls = serving()
    stock = cls.stream
    assert streaming.wrap(cls, "stream", Native, "k") == "native"
    assert cls.stream is stock


def test_a_vllm_with_another_generator_is_refused() -> None:
    class Other:
        async def stream(self, request: Any) -> AsyncGenerator[str, None]:
            yield ""

    with pytest.raises(RefusedError, match="result_generator, request_id, model_name"):
        streaming.wrap(Other, "stream", Model, "k")
    with pytest.raises(RefusedError, match="Other.gone"):
        streaming.wrap(Other, "gone", Model, "k")
