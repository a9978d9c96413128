"""The router's certificate: checked before it serves, and read again when it is renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

from toolkit.errors import SettingsError
from toolkit.router.fleet.polling import WatchedFiles, stamp

# The last one is what OpenSSL says of a key of another kind: the certificate of that kind is missing.
_NOT_ITS_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class TlsFiles(WatchedFiles):
    """The SSLContext of a certificate chain and its key, both PEM. Connections that last keep their
    certificate, new ones get the latest good one.

    Raises:
        SettingsError: a file is missing, unreadable or not PEM, the key is encrypted or does not fit.
    """

    _latest: ssl.SSLContext

    def __init__(self, cert: Path, key: Path) -> None:
        super().__init__(f"the certificate and its key ({cert}, {key})")
        self._cert = cert
        self._key = key
        self.load()
        self.context = self._latest
        # A context keeps one certificate per kind of key, so loading a renewed one into it could leave the
        # old one in use beside it. Each handshake is handed to the latest context instead.
        self.context.sni_callback = self._hand_on

    def _hand_on(self, connection: ssl.SSLObject, _name: str | None, _front: ssl.SSLContext) -> None:
        connection.context = self._latest

    def _stamps(self) -> tuple[object, ...]:
        return stamp(self._cert), stamp(self._key)

    def _take(self) -> None:
        self._latest = _read(self._cert, self._key)


def _read(cert: Path, key: Path) -> ssl.SSLContext:
    _look_for("--tls-cert", cert, b"-----BEGIN CERTIFICATE-----", "certificate")
    _look_for("--tls-key", key, b"PRIVATE KEY-----", "private key")

    def no_password() -> str:
        # OpenSSL would ask on the terminal.
        raise SettingsError(
            f"--tls-key {key}: the key is encrypted.",
            next_step="give the key without its password: `umask 077; openssl pkey -in KEY -out PLAIN`",
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason in _NOT_ITS_KEY:
            raise SettingsError(
                f"--tls-key {key}: it is not the key of the certificate --tls-cert {cert}.",
                next_step="give the key that the certificate was requested with; in the file of a chain "
                "the server's own certificate stands first",
            ) from error
        raise SettingsError(
            f"--tls-cert {cert} and --tls-key {key} cannot be used: {error.reason or error}.",
            next_step="see which is damaged: `openssl x509 -noout -in CERT`, `openssl pkey -noout -in KEY`",
        ) from error
    return context


def _look_for(option: str, path: Path, mark: bytes, what: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{option} {path}: it cannot be read: {error.strerror or error}.",
            next_step=f"give {option} a PEM file that the router's user may read",
        ) from error
    if mark not in content:
        raise SettingsError(
            f"{option} {path}: it holds no {what} in PEM form.",
            next_step=f"give {option} a PEM file; it has a line with `{mark.decode()}`",
        )
