"""Opening an ssh connection to a head node: whose key may answer, who may log in, and what a failure means.

Host keys are always checked: against the toolkit's known_hosts file, the user's own, and the fingerprints of
the address. A key that a `@revoked` line of either file names is refused, for whatever host the line is;
`@cert-authority` lines are ignored, since host certificates are not asked for. Nothing of ~/.ssh/config or
fabric's own files is read, no agent is forwarded, nothing is asked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import socket
from pathlib import Path

from fabric import Config, Connection
from paramiko import (
    AuthenticationException,
    MissingHostKeyPolicy,
    PasswordRequiredException,
    PKey,
    SSHClient,
    SSHException,
    Transport,
)
from paramiko.hostkeys import HostKeyEntry
from paramiko.ssh_exception import NoValidConnectionsError

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress

# A router or firewall forgets a silent connection after some minutes.
KEEPALIVE_SECONDS = 15
USERS_KNOWN_HOSTS = Path("~/.ssh/known_hosts")
# An RSA key is one key with three signatures.
SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}

# Without a handler Python prints paramiko's tracebacks of connections that end; ours tell the same.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Unreachable(ToolkitError):
    """No ssh server answered: trying again later may help."""


def connect(address: SshAddress) -> Connection:
    """An open connection. Raises Unreachable when nothing answers, ToolkitError for a wrong key on either
    side; each says what to do."""
    if address.key_file is not None and not os.access(address.key_file, os.R_OK):
        raise ToolkitError(
            f"target.ssh.key_file: can't read {address.key_file}.",
            next_step="set target.ssh.key_file to the private key of the cluster's key pair",
        )
    known = HostKeyCheck(address)
    connection = Connection(
        address.host,
        user=address.user,
        port=address.port,
        # lazy: neither fabric's files nor ~/.ssh/config; a jump host of the latter would not be checked.
        config=Config(lazy=True),
        forward_agent=False,
        connect_timeout=address.connect_seconds,
        connect_kwargs={
            "key_filename": [str(address.key_file)] if address.key_file else [],
            "look_for_keys": address.key_file is None,
            "allow_agent": address.key_file is None,
            "banner_timeout": address.connect_seconds,
            "auth_timeout": address.connect_seconds,
            "channel_timeout": address.connect_seconds,
            "transport_factory": known.transport,
        },
    )
    connection.client.set_missing_host_key_policy(known)
    try:
        connection.open()
    except (OSError, EOFError, SSHException, ValueError) as error:
        connection.close()
        raise _told(address, error) from error
    except ToolkitError:
        connection.close()
        raise
    connection.transport.set_keepalive(KEEPALIVE_SECONDS)
    return connection


class HostKeyCheck(MissingHostKeyPolicy):
    """Decides on the server's key; the client itself knows none, so that every key comes here."""

    def __init__(self, address: SshAddress) -> None:
        self._address = address
        lines = {file: _lines_of(file) for file in (address.known_hosts, USERS_KNOWN_HOSTS.expanduser())}
        self._known = [(key, file) for file in lines for key in _keys_of(lines[file], address.known_as)]
        self._revoked = {blob: file for file in lines for blob in _revoked_in(lines[file])}

    def transport(self, sock: socket.socket, disabled_algorithms: dict[str, list[str]] | None) -> Transport:
        """Asks the server for a key of a type that is known before one that is not."""
        transport = Transport(sock, disabled_algorithms=disabled_algorithms)
        types = {key.get_name() for key, _ in self._known}
        preferred = {name for kind in types for name in SIGNATURES.get(kind, (kind,))}
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: name not in preferred)
        return transport

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        if key.asbytes() in self._revoked:
            raise self._revocation(key)
        if any(key == known for known, _ in self._known):
            return
        if key.fingerprint in self._address.fingerprints:
            self._remember(key)
            return
        raise self._refusal(key)

    def _revocation(self, key: PKey) -> ToolkitError:
        shown = f"{key.fingerprint} ({key.get_name()})"
        return ToolkitError(
            f"the host key of {self._address.known_as}, {shown}, is REVOKED by a line of "
            f"{self._revoked[key.asbytes()]}. Nothing was sent.",
            next_step="somebody else may have that key: give the head node new host keys, or make a new head "
            "node; remove the @revoked line only if it is there by mistake",
        )

    def _refusal(self, key: PKey) -> ToolkitError:
        shown = f"{key.fingerprint} ({key.get_name()})"
        host = self._address.known_as
        if self._known:
            known = ", ".join(f"{each.fingerprint} ({each.get_name()}, {file})" for each, file in self._known)
            return ToolkitError(
                f"the host key of {host} has CHANGED: it shows {shown}, known is {known}. "
                "Somebody else may be answering there; nothing was sent.",
                next_step="if the head node was replaced, compare with the fingerprints on its console "
                "(`aws ec2 get-console-output --latest`) and set target.ssh.fingerprint to the new one",
            )
        if self._address.fingerprints:
            return ToolkitError(
                f"the host key of {host} is {shown}, expected was "
                f"{' or '.join(self._address.fingerprints)}. Nothing was sent.",
                next_step="is target.ssh.host the head node? If it is, compare with the fingerprints on its "
                "console and set target.ssh.fingerprint",
            )
        return ToolkitError(
            f"the host key of {host} is unknown: {shown}. Nothing was sent.",
            next_step="compare it with the fingerprints on the head node's console "
            "(`aws ec2 get-console-output --latest`); if it is there, set "
            f"target.ssh.fingerprint={key.fingerprint}",
        )

    def _remember(self, key: PKey) -> None:
        file, name = self._address.known_hosts, self._address.known_as
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = [line for line in _lines_of(file) if line.split(maxsplit=1)[:1] != [name]]
            file.touch(mode=0o600)
            text = "".join(f"{line}\n" for line in [*kept, f"{name} {key.get_name()} {key.get_base64()}"])
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise ToolkitError(
                f"can't write {file}: {error.strerror}.",
                next_step="set target.ssh.known_hosts to a file that can be written",
            ) from error


def _lines_of(file: Path) -> list[str]:
    """Of a known_hosts file, none if it isn't there. Names and comments in it may be of any encoding."""
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ToolkitError(
            f"can't read {file}: {error.strerror}.",
            next_step="make it readable, or set target.ssh.known_hosts to another file",
        ) from error
    return text.removesuffix("\n").split("\n") if text else []


def _keys_of(lines: list[str], name: str) -> list[PKey]:
    """The keys that a known_hosts file has for a host. A line that paramiko can't read, such as one of a
    hardware key, is left out: it could only have admitted a server."""
    keys = []
    for line in lines:
        if not line.strip() or line.strip().startswith(("#", "@")):
            continue
        try:
            entry = HostKeyEntry.from_line(" ".join(line.split()))
        except Exception:  # of a garbled key paramiko and cryptography raise anything
            continue
        if entry is not None and entry.key is not None and any(_is(name, each) for each in entry.hostnames):
            keys.append(entry.key)
    return keys


def _revoked_in(lines: list[str]) -> list[bytes]:
    """The keys of `@revoked` lines: MARKER HOSTS TYPE KEY. Whatever hosts they name: a key that somebody
    else has is no better under another name of the head node."""
    revoked = []
    for line in lines:
        marker, *fields = line.split()[:4] or [""]
        if marker == "@revoked" and len(fields) == 3:
            try:
                revoked.append(base64.b64decode(fields[2]))
            except ValueError:
                continue  # no server can show what is no key
    return revoked


def _is(name: str, entry: str) -> bool:
    """`entry`: a name as it stands there, or `|1|SALT|HASH`, the name's HMAC (`ssh-keygen -H`)."""
    if not entry.startswith("|1|"):
        return entry == name
    try:
        salt, digest = (base64.b64decode(part) for part in entry.split("|")[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), hashlib.sha1), digest)


def _told(address: SshAddress, error: Exception) -> ToolkitError:
    where = f"{address.host} port {address.port}"
    if isinstance(error, socket.gaierror):
        return Unreachable(
            f"no host of the name {address.host}: {error.strerror}.",
            next_step="set target.ssh.host to the head node's address: `toolkit cluster describe -f FILE`",
        )
    if isinstance(error, NoValidConnectionsError):
        return Unreachable(
            f"nothing listens for ssh on {where}.",
            next_step="is the head node up, and target.ssh.port right? `toolkit cluster describe -f FILE`",
        )
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"{where} does not answer within {address.connect_seconds} s.",
            next_step="is the head node up, and does its security group let this machine in on that port?",
        )
    if isinstance(error, AuthenticationException) or "No authentication methods" in str(error):
        return _refused(address, error)
    if address.key_file and (isinstance(error, ValueError) or "private key file" in str(error)):
        return ToolkitError(
            f"target.ssh.key_file: {address.key_file} is no private key: {error}.",
            next_step="set it to the private key of the cluster's key pair",
        )
    return Unreachable(
        f"no ssh connection to {where}: {error or type(error).__name__}.",
        next_step="is that an ssh server? `ssh -v` to it tells more",
    )


def _refused(address: SshAddress, error: Exception) -> ToolkitError:
    if isinstance(error, PasswordRequiredException):
        return ToolkitError(
            f"target.ssh.key_file: {address.key_file} has a passphrase, which is not asked for here.",
            next_step="`ssh-add` it to the ssh agent and leave target.ssh.key_file out",
        )
    offered = str(address.key_file) if address.key_file else "any key of the ssh agent and ~/.ssh"
    return ToolkitError(
        f"{address} does not accept {offered}.",
        next_step="set target.ssh.key_file to the private key of the cluster's key pair and target.ssh.user "
        "to its user, `ubuntu` on Ubuntu",
    )
