"""Who may use the router, and over what: API keys, the engines' own key, TLS."""

import datetime
import hashlib
import http.client
import ipaddress
import json
import socket
import ssl
import urllib.request

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
ALICE, BOB = {"Authorization": "Bearer alice-k3y"}, {"X-Api-Key": "bob-k3y"}
SECRETS = ("alice-k3y", "bob-k3y", "engines-k3y", "wrong-k3y")


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def keys(tmp_path):
    return private(tmp_path / "keys", "# who may\nalice:alice-k3y\nbob:bob-k3y\n")


@every_endpoint
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong-k3y"}, {"Authorization": "alice-k3y"}, {"X-Api-Key": ""}]
)
def test_without_a_valid_key_no_engine_is_asked(own, keys, endpoint, headers):
    stage = own(api_keys=keys)
    answer = stage.client.turn(endpoint, ["hello"], headers=headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    error = answer.json["error"]
    assert error["type"] == "authentication_error"
    assert "API key" in error["message"]
    assert (answer.json.get("type") == "error") == (endpoint == Endpoint.MESSAGES)
    assert stage.prefills[0].seen == stage.decodes[0].seen == []
    assert "k3y" not in answer.body.decode()


@every_endpoint
@pytest.mark.parametrize(("headers", "name"), [(ALICE, "alice"), (BOB, "bob")])
def test_with_one_the_log_has_its_name_and_the_engines_do_not_see_it(own, keys, endpoint, headers, name):
    stage = own(api_keys=keys)
    answer = stage.client.turn(endpoint, ["hello"], headers={**headers, "X-Request-Id": "keyed"})
    assert answer.status == 200
    assert stage.client.logged("keyed")["key"] == name
    for seen in (stage.prefills[0].seen[0], stage.decodes[0].seen[0]):
        assert not {"authorization", "x-api-key"} & seen.headers.keys()
    assert not any(secret in stage.client.log.read_text() for secret in SECRETS)


def test_the_engines_get_their_own_key(own, keys, tmp_path):
    stage = own(api_keys=keys, engine_key_file=private(tmp_path / "engine-key", "engines-k3y\n"))
    for headers in (ALICE, BOB):
        assert stage.client.chat(headers=headers).status == 200
    seen = [*stage.seen("prefills"), *stage.seen("decodes")]
    assert len(seen) == 4
    assert {one.headers["authorization"] for one in seen} == {"Bearer engines-k3y"}
    assert all("x-api-key" not in one.headers for one in seen)


def test_each_key_has_conversations_and_responses_of_its_own(own, keys, conversation, history):
    client = own(api_keys=keys).client
    paths = [client.chat(conversation, headers=headers).path for headers in (ALICE, BOB, ALICE)]
    assert paths == ["prefill", "prefill", "readback"]
    client.turn(Endpoint.CHAT, history(1), headers=ALICE)
    paths = [client.turn(Endpoint.CHAT, history(2), headers=headers).path for headers in (BOB, ALICE)]
    assert paths == ["prefill", "readback"]
    made = client.turn(Endpoint.RESPONSES, ["hello"], headers=ALICE).json["id"]
    path = f"/v1/responses/{made}"
    assert [client.ask("GET", path, headers=headers).status for headers in (ALICE, BOB, {})] == [
        200,
        404,
        401,
    ]


def test_what_others_see_of_a_request_names_neither_conversation_nor_response(own, keys, conversation):
    client = own(api_keys=keys).client
    for headers in (ALICE, BOB, ALICE):
        client.chat(conversation, headers=headers)
    made = client.turn(Endpoint.RESPONSES, ["hello"], headers=ALICE).json["id"]
    assert client.ask("GET", f"/v1/responses/{made}", headers=ALICE).status == 200
    assert client.ask("GET", "/nope/alice-k3y").status == 404
    state = client.ask("GET", "/router/state", headers=BOB)
    rows = state.json["recent"]
    assert [row["endpoint"] for row in rows[:3]] == ["other", "/v1/responses/ID", Endpoint.RESPONSES]
    first, second, third = (row["conversation"] for row in rows[:2:-1])
    # One name of two tenants is two conversations, and nobody finds either by trying names.
    assert first == third != second
    assert hashlib.sha256(conversation.encode()).hexdigest()[:12] not in (first, second)
    assert not any(secret in state.body for secret in (made.encode(), conversation.encode(), b"alice-k3y"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/metrics", 200),
        ("GET", "/", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/router/state", 401),
        ("GET", "/v1/models", 401),
        ("POST", "/tokenize", 401),
        ("POST", "/v1/messages/count_tokens", 401),
        ("GET", "/v1/responses/resp_1", 401),
    ],
)
def test_what_needs_a_key_besides(own, keys, method, path, status):
    client = own(api_keys=keys).client
    body = {"prompt": "x"} if method == "POST" else None
    assert client.ask(method, path, body).status == status
    if status == 401 and "responses" not in path:
        assert client.ask(method, path, body, ALICE).status == 200


def test_counting_tokens_of_messages_is_refused_in_their_form(own, keys):
    answer = own(api_keys=keys).client.ask("POST", "/v1/messages/count_tokens", {"messages": []})
    assert (answer.json["type"], answer.json["error"]["type"]) == ("error", "authentication_error")


def test_without_a_file_of_keys_the_clients_credential_is_the_engines(pair):
    pair.client.chat(headers={**ALICE, **BOB})
    for seen in (pair.prefills[0].seen[0], pair.decodes[0].seen[0]):
        assert (seen.headers["authorization"], seen.headers["x-api-key"]) == ("Bearer alice-k3y", "bob-k3y")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "router")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


def test_over_tls_a_stream_is_what_it_is_without(own, certificate, make_body):
    cert, key = certificate
    stage = own(tls_cert=cert, tls_key=key)
    url = stage.client.url.replace("http://", "https://")
    trust = ssl.create_default_context(cafile=cert)
    for stream in (True, False):
        body = make_body(Endpoint.CHAT, ["é" * 100_000], stream=stream)
        request = urllib.request.Request(
            url + Endpoint.CHAT, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
            assert answer.read() == stage.decodes[0].seen[-1].clean
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(url + "/health", context=ssl.create_default_context(), timeout=10)


def test_a_client_that_leaves_a_tls_connection_is_noticed(own, certificate):
    cert, key = certificate
    stage = own(tls_cert=cert, tls_key=key)
    stage.decodes[0].fault = Fault(hang="answer")
    connection = http.client.HTTPSConnection(
        *stage.client.address, context=ssl.create_default_context(cafile=cert), timeout=10
    )
    connection.request("POST", Endpoint.CHAT, b'{"messages":[]}')
    wait_until(lambda: stage.decodes[0].seen)
    connection.close()
    wait_until(lambda: stage.decodes[0].seen[0].ended == "aborted")


def test_who_speaks_no_tls_to_a_tls_router_is_cut_off_and_harms_nobody(own, certificate):
    cert, key = certificate
    client = own(tls_cert=cert, tls_key=key).client
    with socket.create_connection(client.address, timeout=10) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n")
        assert not raw.recv(100).startswith(b"HTTP")
