"""What goes wrong reaches a program as the SDK's own exception, with a message that says what to do."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.conftest import Pair, Serve
from tests.clients.served import Router, run_router
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import free_port, wait_until

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SDKS = pytest.mark.parametrize("sdk", [openai, anthropic], ids=["openai", "anthropic"])


def ask(sdk: Any, router: Router, *, stream: bool = False, extra_body: Any = None, **options: Any) -> Any:
    """One request with a client of the SDK with these options; a stream is read to its end."""
    members = {**CHAT, "stream": stream, "extra_body": extra_body}
    if sdk is openai:
        answer = router.openai(**options).chat.completions.create(**members)
    else:
        answer = router.anthropic(**options).messages.create(**members, max_tokens=9)
    return list(answer) if stream else answer


def told(error: Any) -> tuple[str, str]:
    """Type and message, from where each API puts them."""
    body = error.body.get("error", error.body)
    assert body["message"]
    return body["type"], body["message"]


@SDKS
def test_metadata_that_is_not_a_clients(serve: Serve, sdk: Any) -> None:
    with pytest.raises(sdk.BadRequestError) as failure:
        ask(sdk, serve(), extra_body={"kv_transfer_params": {"do_remote_prefill": True}})
    kind, message = told(failure.value)
    assert kind == "invalid_request_error"
    assert "kv_transfer_params is set by the router" in message


@SDKS
def test_an_engines_refusal_is_passed_on(serve: Serve, pair: Pair, sdk: Any) -> None:
    text = "This model's maximum context length is 2048 tokens."
    refusal = {"error": {"message": text, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    pair.prefill.fault = Fault(status=400, body=json.dumps(refusal).encode())
    with pytest.raises(sdk.BadRequestError) as failure:
        ask(sdk, serve())
    assert told(failure.value) == ("BadRequestError", text)


@SDKS
def test_a_missing_key(serve: Serve, tmp_path: Path, sdk: Any) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("alice:right-key-of-alice\n")
    router = serve(api_keys=keys)
    with pytest.raises(sdk.AuthenticationError) as failure:
        ask(sdk, router, api_key="wrong")
    assert "API key" in told(failure.value)[1]
    assert "wrong" not in str(failure.value)
    ask(sdk, router, api_key="right-key-of-alice")


@SDKS
def test_too_many_requests_and_the_sdks_retry(serve: Serve, pair: Pair, sdk: Any) -> None:
    router = serve(max_concurrent=1, max_queue=0)
    pair.decode.fault = Fault(hang="stream", only=1)
    stream = router.openai().chat.completions.create(**CHAT, stream=True)
    next(iter(stream))
    with pytest.raises(sdk.RateLimitError) as failure:
        ask(sdk, router)
    assert int(failure.value.response.headers["retry-after"]) >= 1
    assert told(failure.value)[1]
    # An SDK left as it is tries again when it is told to.
    patient = threading.Thread(target=ask, args=(sdk, router), kwargs={"max_retries": 2})
    refused = len(router.ways.paths)
    patient.start()
    wait_until(lambda: len(router.ways.paths) > refused)
    stream.close()
    patient.join()
    assert router.ways.paths[-1] == "prefill"


@SDKS
def test_no_such_path_and_no_such_response(serve: Serve, sdk: Any) -> None:
    router = serve()
    client = router.openai() if sdk is openai else router.anthropic()
    with pytest.raises(sdk.NotFoundError) as failure:
        client.post("/v1/nothing" if sdk is anthropic else "/nothing", cast_to=object, body={})
    assert "This router has no /v1/nothing" in told(failure.value)[1]
    if sdk is openai:
        with pytest.raises(openai.NotFoundError, match="no such response"):
            router.openai().responses.create(model="tiny", input="x", previous_response_id="resp_unknown")
        with pytest.raises(openai.NotFoundError, match="no such response"):
            router.openai().responses.retrieve("resp_unknown")


@SDKS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_engines_that_fail_or_are_away(serve: Serve, pair: Pair, sdk: Any, stream: bool) -> None:
    pair.decode.fault = Fault(status=500)
    with pytest.raises(sdk.InternalServerError) as failure:
        ask(sdk, serve(eject_after=100), stream=stream)
    assert failure.value.status_code == 500
    assert told(failure.value)[1] == "injected"


@SDKS
def test_no_engine_at_all(tmp_path: Path, sdk: Any) -> None:
    nobody = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with (
        run_router(nobody[:1], nobody[1:], tmp_path / "access.log") as router,
        pytest.raises(sdk.InternalServerError) as failure,
    ):
        ask(sdk, router)
    assert failure.value.status_code == 503
    assert "No decode engine takes requests now" in told(failure.value)[1]


@SDKS
def test_an_engine_that_does_not_answer_in_time(serve: Serve, pair: Pair, sdk: Any) -> None:
    pair.prefill.fault = Fault(hang="answer")
    with pytest.raises(sdk.InternalServerError) as failure:
        ask(sdk, serve(prefill_timeout_s=0.2))
    assert failure.value.status_code == 504


@SDKS
@pytest.mark.parametrize("reset", ["stream", "end"])
def test_a_stream_that_breaks_is_never_taken_for_a_whole_one(
    serve: Serve, pair: Pair, sdk: Any, reset: str
) -> None:
    broken = Fault(reset="stream", after_events=3) if reset == "stream" else Fault(ends=b"", after_events=3)
    pair.decode.fault = broken
    with pytest.raises(sdk.APIError) as failure:
        ask(sdk, serve(), stream=True)
    assert "decode engine" in str(failure.value)


def test_a_response_that_breaks_is_told_as_an_error_event(serve: Serve, pair: Pair) -> None:
    pair.decode.fault = Fault(reset="stream", after_events=4)
    events = []
    with pytest.raises(openai.APIError, match="decode engine"):
        events += serve().openai().responses.create(model="tiny", input="x", stream=True)


@SDKS
def test_the_sdks_own_retries_outlast_a_short_failure(serve: Serve, pair: Pair, sdk: Any) -> None:
    pair.decode.fault = Fault(status=503, only=1)
    router = serve(eject_after=100)
    ask(sdk, router, max_retries=1)
    wait_until(lambda: [seen.ended for seen in pair.decode.seen] == ["failed", "done"])
