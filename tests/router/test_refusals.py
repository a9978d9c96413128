"""What the router refuses by itself: always JSON in the form of the endpoint, never a crash."""

import http.client
import socket

import pytest

from toolkit.router.request.dialects import DIALECTS, Endpoint

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])


def error_of(response, endpoint=Endpoint.CHAT):
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json["error"]
    if DIALECTS[endpoint].errors == "anthropic":
        assert (response.json["type"], set(error)) == ("error", {"type", "message"})
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == response.status
    return error


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b'{"stream":"yes"}'])
@every_endpoint
def test_bad_bodies(pair, body, endpoint):
    answer = pair.client.ask("POST", endpoint, body)
    assert answer.status == 400
    error_of(answer, endpoint)
    assert pair.seen("prefills") == pair.seen("decodes") == []


@pytest.mark.parametrize("bad", [["a"], "", 7, "x" * 257, None])
@every_endpoint
def test_bad_conversation_ids(pair, bad, endpoint):
    answer = pair.client.turn(endpoint, ["hello"], conversation_id=bad)
    assert answer.status == 400
    assert "conversation_id" in error_of(answer, endpoint)["message"]


@both_modes
@every_endpoint
def test_client_kv_metadata_never_reaches_an_engine(pair, stream, endpoint):
    params = {"do_remote_decode": True, "remote_block_ids": [[9]], "remote_host": "victim"}
    for members in ({"kv_transfer_params": params}, {"vllm_xargs": {"kv_transfer_params": "x"}}):
        answer = pair.client.turn(endpoint, ["hello"], stream=stream, **members)
        assert answer.status == 400
        error_of(answer, endpoint)
    assert pair.seen("prefills") == pair.seen("decodes") == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/pd/leases/release", 404),
        ("GET", "/v1/responses/", 404),
        ("GET", "/v1/responses/never-made", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("OPTIONS", "*", 404),
    ],
)
def test_unknown_urls_and_methods(pair, method, path, status):
    answer = pair.client.ask(method, path)
    assert answer.status == status
    assert answer.json["error"]["code"] == status
    assert pair.decodes[0].leases.calls == []


def test_a_405_names_the_methods_that_there_are(pair):
    assert pair.client.ask("GET", Endpoint.CHAT).headers["allow"] == "POST"
    assert pair.client.ask("POST", "/health").headers["allow"] == "GET, HEAD"


def test_a_chunked_body_over_the_limit(own):
    stage = own(max_body_bytes=1000)
    connection = http.client.HTTPConnection(*stage.client.address, timeout=10)
    connection.request("POST", Endpoint.CHAT, iter([b"x" * 600] * 2), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert stage.prefills[0].seen == []
    assert stage.client.metric("pd_router_refusals_total", status="413") == 1


def test_bytes_that_are_no_http(pair):
    with socket.create_connection(pair.client.address, timeout=5) as raw:
        raw.sendall(b"\x00\x01 nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert pair.client.chat().status == 200
