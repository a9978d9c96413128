"""The router's certificate: real handshakes, renewal under way, and files that cannot be used."""

import asyncio
import datetime
import logging
import ssl

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from toolkit.errors import SettingsError
from toolkit.router.fleet.tls import TlsFiles

RSA, EC = "rsa", "ec"


@pytest.fixture(scope="module")
def rsa_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def issue(tmp_path, rsa_key):
    """Writes cert.pem and key.pem for `name`: `issue(name, kind)`; returns their paths."""

    def write(name, kind=EC, password=None):
        key = rsa_key if kind == RSA else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        cert = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("router.test")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        (tmp_path / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        (tmp_path / "key.pem").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return tmp_path / "cert.pem", tmp_path / "key.pem"

    return write


class Server:
    """A TLS echo server on this machine."""

    def __init__(self, context):
        self._context = context

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0, ssl=self._context)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    @staticmethod
    async def _echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    async def presented(self, *, server_name="router.test"):
        """The name in the certificate that a client sees."""
        client = ssl.create_default_context()
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=client, server_hostname=server_name
        )
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.write(b"ping\n")
        assert await reader.readline() == b"ping\n"
        writer.close()
        await writer.wait_closed()
        names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return names[0].value


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a loop of each kind: they treat TLS in their own ways."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [RSA, EC])
async def test_a_client_sees_the_certificate(issue, kind):
    async with Server(TlsFiles(*issue("first", kind)).context) as server:
        assert await server.presented() == "first"
        assert await server.presented(server_name="") == "first"


@pytest.mark.parametrize("after", [RSA, EC])
@pytest.mark.parametrize("before", [RSA, EC])
def test_a_renewed_certificate_is_presented_to_new_connections(issue, run, before, after, caplog):
    files = TlsFiles(*issue("first", before))

    async def renew():
        async with Server(files.context) as server:
            assert await server.presented() == "first"
            issue("renewed", after)
            assert await server.presented() == "first", "until it is polled"
            files.poll()
            files.poll()
            for name in ("router.test", ""):
                assert await server.presented(server_name=name) == "renewed"

    run(renew())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.asyncio
async def test_a_renewal_half_way_keeps_the_old_certificate_and_takes_the_new_one_when_it_is_whole(
    issue, caplog
):
    cert, key = issue("first")
    files = TlsFiles(cert, key)
    old_key = key.read_bytes()
    issue("renewed")
    new_key = key.read_bytes()
    key.write_bytes(old_key)
    async with Server(files.context) as server:
        for _ in range(3):
            files.poll()
        assert await server.presented() == "first"
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        key.write_bytes(new_key)
        files.poll()
        assert await server.presented() == "renewed"


def test_old_versions_of_tls_are_refused(issue):
    assert TlsFiles(*issue("first")).context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("spoiled", ["cert", "key"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "it cannot be read: No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "it cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b""), "in PEM form"),
        (lambda path: path.write_bytes(b"\x30\x82\x01\x00"), "in PEM form"),
        (lambda path: path.write_bytes(path.read_bytes()[:80]), "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(issue, spoiled, change, said):
    cert, key = issue("first")
    change(cert if spoiled == "cert" else key)
    with pytest.raises(SettingsError) as caught:
        TlsFiles(cert, key)
    path = cert if spoiled == "cert" else key
    assert f"--tls-{spoiled} {path}" in caught.value.what
    assert said in caught.value.what
    assert caught.value.next_step


def test_files_that_were_exchanged_are_told(issue):
    cert, key = issue("first")
    with pytest.raises(SettingsError, match="--tls-cert .* holds no certificate in PEM form"):
        TlsFiles(key, cert)


@pytest.mark.parametrize("others", [RSA, EC])
def test_another_certificates_key_is_refused(issue, others):
    cert, _ = issue("first", EC)
    mine = cert.read_bytes()
    _, key = issue("second", others)
    cert.write_bytes(mine)
    with pytest.raises(SettingsError, match="is not the key of the certificate"):
        TlsFiles(cert, key)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(issue):
    with pytest.raises(SettingsError, match="the key is encrypted") as caught:
        TlsFiles(*issue("first", password=b"s3cret"))
    assert "openssl pkey" in caught.value.next_step
