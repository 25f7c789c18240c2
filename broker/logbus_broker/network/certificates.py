"""The broker's certificates: read by the ssl.* settings, checked, and read again when their files change.

A keystore is taken only if its key fits and a client would accept its certificate today: a handshake with itself, in memory,
tells both. At the start anything else is a ConfigError. While the broker runs, the certificate in use stays, and an error is
logged; connections keep the context that they began with, so a change ends none of them.

`ssl` reads keys from files only. A key that is part of a setting, or of a PKCS12 file, goes through a file in memory that has no
name, so it is never written to a disk.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logbus_broker.errors import ConfigError
from logbus_broker.network.connection import Connection
from logbus_broker.network.tls import HandshakeShare, PrincipalRules, TlsConnection
from logbus_broker.setting_parsers import SecurityProtocol
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.tls")

_WARNED_SECONDS = 14 * 86_400  # before a certificate expires
_DAY_SECONDS = 86_400
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE = "CERTIFICATE"
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(settings: BrokerConfig) -> tuple[ssl.SSLContext, float]:
    """What serves a listener with these settings (`BrokerConfig.at_listener`), and when its certificate expires, in seconds since
    the epoch. Raises ConfigError."""
    keystore = _read_keystore(settings)
    expires_at = _checked(keystore, settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_key(context, keystore, settings)
    _limit_versions(context, settings)
    # Without resumption each connection shows its certificate, and one signed by an authority that is no longer trusted is out.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    if settings.ssl_client_auth != "none":
        context.verify_mode = _VERIFY[settings.ssl_client_auth]
        _trust(context, settings)
    return context, expires_at


def client_context(settings: BrokerConfig) -> ssl.SSLContext:
    """What connects to other brokers: it accepts certificates of the truststore's authorities for the name of the host, and shows
    the keystore's. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, settings)
    _load_key(context, _read_keystore(settings), settings)
    _trust(context, settings)
    return context


def zookeeper_encryption(config: BrokerConfig) -> Callable[[socket.socket, str], ssl.SSLSocket]:
    """What makes an encrypted socket of one that is connected to ZooKeeper at a host. Raises ConfigError."""
    truststore, keystore = config.zookeeper_truststore, config.zookeeper_keystore
    try:
        context = ssl.create_default_context(cafile=truststore or None)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"zookeeper.ssl.truststore.location={truststore}: no certificates in PEM: {error}") from None
    context.check_hostname = bool(config.zookeeper_identification)
    if keystore:
        try:
            context.load_cert_chain(keystore, password="")  # without one, OpenSSL would ask the terminal for it
        except OSError as error:
            raise ConfigError(
                f"zookeeper.ssl.keystore.location={keystore}: no certificate and unencrypted key in PEM: {error}"
            ) from None
    return lambda sock, host: context.wrap_socket(sock, server_hostname=host)


# -- keystore and truststore -----------------------------------------------------------------------------------------------------


def _read_keystore(settings: BrokerConfig) -> str:
    """Key, certificate and chain as PEM."""
    if not settings.ssl_keystore_location:
        return _as_lines(settings.ssl_keystore_key) + _as_lines(settings.ssl_keystore_chain)
    location = "ssl.keystore.location", settings.ssl_keystore_location
    return _read_store(*location, settings.ssl_keystore_type, settings.ssl_keystore_password, wants_key=True)


def _trust(context: ssl.SSLContext, settings: BrokerConfig) -> None:
    if settings.ssl_truststore_location:
        where = f"ssl.truststore.location={settings.ssl_truststore_location}"
        location = "ssl.truststore.location", settings.ssl_truststore_location
        text = _read_store(*location, settings.ssl_truststore_type, settings.ssl_truststore_password, wants_key=False)
    else:
        where, text = "ssl.truststore.certificates", _as_lines(settings.ssl_truststore_certificates)
    certificates = "\n".join(block[0] for block in _BLOCK.finditer(text) if block[1] == _CERTIFICATE)
    if not certificates:
        raise ConfigError(f"{where} has no certificate")
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise ConfigError(f"{where} cannot be used: {_reason(error)}") from None


def _read_store(setting: str, path: str, kind: str, password: str, *, wants_key: bool) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}={path} cannot be read: {error.strerror or error}") from None
    if kind == "PKCS12":
        return _from_pkcs12(content, password, f"{setting}={path}")
    text = content.decode("ascii", "replace")
    blocks = {block[1] for block in _BLOCK.finditer(text)}
    if _CERTIFICATE in blocks and (not wants_key or any(block.endswith("PRIVATE KEY") for block in blocks)):
        return text
    if content[:4] == b"\xfe\xed\xfe\xed":
        advice = "it is Java's JKS: convert it with `keytool -importkeystore ... -deststoretype PKCS12`"
    elif content[:1] == b"\x30":
        advice = f"if it is PKCS12, set {setting.rpartition('.')[0]}.type=PKCS12"
    elif wants_key:
        advice = "the key, the certificate and its chain belong into one file: cat key.pem certificate.pem chain.pem > broker.pem"
    else:
        advice = "there is no -----BEGIN CERTIFICATE----- in it"
    raise ConfigError(f"{setting}={path} cannot be used: {advice}")


def _from_pkcs12(content: bytes, password: str, where: str) -> str:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise ConfigError(
            f"{where}: PKCS12 needs the package cryptography (pip install 'logbus-broker[pkcs12]'); or convert the file: openssl "
            "pkcs12 -in FILE -nodes -out FILE.pem"
        ) from None
    try:
        store = pkcs12.load_pkcs12(content, password.encode() or None)
    except ValueError as error:
        raise ConfigError(f"{where} cannot be used: {error} (is the password right?)") from None
    certificates = [*([store.cert] if store.cert else []), *store.additional_certs]
    blocks = [certificate.certificate.public_bytes(Encoding.PEM) for certificate in certificates]
    if store.key is not None:
        blocks.insert(0, store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return b"".join(blocks).decode()


def _as_lines(text: str) -> str:
    r"""PEM as a setting holds it in one line, with `\n` or spaces for the ends of lines."""
    blocks = []
    for block in _BLOCK.finditer(text.replace("\\n", "\n")):
        *headers, encoded = block[2].strip().rsplit("\n\n", 1)  # an encrypted key of the old form has headers
        body = "".join(encoded.split())
        lines = [*headers, ""] if headers else []
        lines += [body[start : start + 64] for start in range(0, len(body), 64)]
        blocks.append("\n".join([f"-----BEGIN {block[1]}-----", *lines, f"-----END {block[1]}-----", ""]))
    return "".join(blocks)


def _load_key(context: ssl.SSLContext, keystore: str, settings: BrokerConfig) -> None:
    with _in_memory(keystore.encode()) as path:
        try:
            context.load_cert_chain(path, password=settings.ssl_key_password)  # always a text: without one it asks the terminal
        except ssl.SSLError as error:
            raise ConfigError(f"{_keystore_of(settings)} cannot be used: {_reason(error)}") from None


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a nameless file with this content."""
    with open(os.memfd_create("keystore"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _keystore_of(settings: BrokerConfig) -> str:
    location = settings.ssl_keystore_location
    return f"ssl.keystore.location={location}" if location else "ssl.keystore.key with ssl.keystore.certificate.chain"


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's words for what can be mended, in ours."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if error.reason is None or "DECRYPT" in error.reason or "PASSWORD" in error.reason:
        return "the key cannot be read; if it is encrypted, ssl.key.password is missing or wrong"
    return error.reason.lower().replace("_", " ")


def _limit_versions(context: ssl.SSLContext, settings: BrokerConfig) -> None:
    versions = sorted(_VERSIONS[version] for version in settings.ssl_enabled_protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _checked(keystore: str, settings: BrokerConfig) -> float:
    """When the certificate expires. ConfigError if a client could not use it now, whatever authorities it trusts."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_key(server, keystore, settings)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is what this client trusts
    client.load_verify_locations(cadata=next(block[0] for block in _BLOCK.finditer(keystore) if block[1] == _CERTIFICATE))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for side in (*sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(f"{_keystore_of(settings)} cannot be used: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise ConfigError(f"{_keystore_of(settings)} cannot be used: {_reason(error)}") from None
    certificate = sides[0].getpeercert()
    assert certificate is not None, "it was verified"
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


# -- a listener ------------------------------------------------------------------------------------------------------------------


class TlsListener:
    """What makes connections of one listener's sockets. `handshakes` is shared by all listeners. Raises ConfigError."""

    def __init__(self, name: str, config: BrokerConfig, *, handshakes: HandshakeShare) -> None:
        self.name = name
        self._settings = config.at_listener(name)
        self._handshakes = handshakes
        self._warn_at = 0.0
        # On a SASL listener the login says who a client is, whatever certificate it has.
        has_principals = config.protocol_of(name) is SecurityProtocol.SSL
        self._rules = PrincipalRules(self._settings.ssl_principal_mapping_rules) if has_principals else None
        self._files = self._look_at_files()  # before they are read: what changes meanwhile is read again
        self._context, self.expires_at = server_context(self._settings)

    def connection(self, sock: socket.socket, peer: str, **common: Any) -> Connection:
        """The arguments of `Connection`. Raises OSError if the peer has gone."""
        secured = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return TlsConnection(secured, peer, handshakes=self._handshakes, rules=self._rules, **common)

    def sweep(self, now: float) -> None:
        """Take changed files, and warn before the certificate expires. `now` is in seconds since the epoch."""
        files = self._look_at_files()
        if files != self._files:
            self._files = files
            self._reload()
        if self.expires_at - now < _WARNED_SECONDS and now >= self._warn_at:
            self._warn_at = now + _DAY_SECONDS
            logger.warning(
                "the certificate of listener %s expires in %.1f days: replace %s, which is read without a restart",
                self.name,
                (self.expires_at - now) / _DAY_SECONDS,
                _keystore_of(self._settings),
            )

    def _reload(self) -> None:
        try:
            self._context, self.expires_at = server_context(self._settings)
        except ConfigError as error:
            logger.error("listener %s keeps its certificate: %s", self.name, error)
            return
        self._warn_at = 0.0
        logger.info("listener %s serves the new %s", self.name, _keystore_of(self._settings))

    def _look_at_files(self) -> tuple[object, ...]:
        """What is different once a file has been replaced or written to."""
        return tuple(map(_state_of, (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location)))


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
