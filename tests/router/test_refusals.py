"""What the router refuses by itself: always JSON in the OpenAI form, never a crash."""

import http.client
import socket
from urllib.parse import urlsplit

import pytest


def error_of(response):
    assert response.headers["content-type"] == "application/json"
    error = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status
    return error


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bad_bodies(pair, body, path):
    answer = pair.client.ask("POST", path, body)
    assert answer.status == 400
    error_of(answer)
    assert pair.seen("prefills") == []


@pytest.mark.parametrize("bad", [["a"], "", 7, "x" * 257])
def test_bad_conversation_ids(pair, bad):
    answer = pair.client.chat(bad)
    assert answer.status == 400
    assert error_of(answer)["param"] == "conversation_id"


@pytest.mark.parametrize("stream", [True, False])
def test_client_kv_metadata_never_reaches_an_engine(pair, stream):
    params = {"do_remote_decode": True, "remote_block_ids": [[9]], "remote_host": "victim"}
    for members in ({"kv_transfer_params": params}, {"vllm_xargs": {"kv_transfer_params": "x"}}):
        answer = pair.client.chat(stream=stream, **members)
        assert answer.status == 400
        error_of(answer)
    assert pair.seen("prefills") == pair.seen("decodes") == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_unknown_urls_and_methods(pair, method, path, status):
    answer = pair.client.ask(method, path)
    assert answer.status == status
    error_of(answer)


def test_a_chunked_body_over_the_limit(engine, router):
    (prefill, prefill_url), (_, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url], max_body_bytes=1000)
    connection = http.client.HTTPConnection(urlsplit(client.url).netloc, timeout=10)
    connection.request("POST", "/v1/chat/completions", iter([b"x" * 600] * 2), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert prefill.seen == []


def test_bytes_that_are_no_http(pair):
    parts = urlsplit(pair.client.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as raw:
        raw.sendall(b"\x00\x01 nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert pair.client.chat().status == 200
