"""How this broker shows the servers it connects to who it is: other brokers by TLS and SASL, ZooKeeper by TLS.

A login is a generator of requests, like any that one broker sends another. So it is the same on a new connection and on one whose
login expires soon (KIP-368), on which other requests are under way.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from logbus_broker.config.settings import BrokerConfig
from logbus_broker.errors import ConfigError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from logbus_broker.network.certificates import client_context
from logbus_broker.protocol import codec
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.replication.interfaces import PeerRequest
from logbus_broker.security import scram

_NONCE_BYTES = 18
_VERSION = 1  # of SaslHandshake and SaslAuthenticate: the first that tells how long a login is valid

Login = Generator[PeerRequest, memoryview, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user that this broker is at the others. `new_nonce` returns a text that it never returned before."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    new_nonce: Callable[[], str]

    def log_in(self) -> Login:
        """The requests of a login, resumed with the answers' bodies; returns for how many ms it is valid, 0: for ever. Raises
        AuthenticationError with what the other broker says."""
        answer = yield from _ask(ApiKey.SASL_HANDSHAKE, mechanism=self.mechanism)
        if answer.error_code != ErrorCode.NONE:
            offered = ", ".join(answer.mechanisms)
            text = f"it does not offer sasl.mechanism.inter.broker.protocol={self.mechanism}: {offered}"
            raise UnsupportedSaslMechanism(text, reason="mechanism", user=self.user)
        messages = self._messages()
        message = next(messages)
        while True:
            answer = yield from _ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
            if answer.error_code != ErrorCode.NONE:
                text = answer.error_message or f"error {answer.error_code}"
                raise SaslAuthenticationFailed(text, reason="refused", user=self.user)
            try:
                message = messages.send(answer.auth_bytes)
            except StopIteration:
                return int(answer.session_lifetime_ms)

    def _messages(self) -> Generator[bytes, bytes, None]:
        if self.mechanism == "PLAIN":
            yield f"\0{self.user}\0{self.password}".encode()
        else:
            yield from scram.log_in(scram.NAMES[self.mechanism], self.user, self.password, self.new_nonce())


def _ask(api_key: ApiKey, **values: Any) -> Generator[PeerRequest, memoryview, Any]:
    message = codec.request_class(api_key)(**values)
    body = yield PeerRequest(int(api_key), _VERSION, message.encode(version=_VERSION))
    return codec.decode_response(api_key, _VERSION, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecurity:
    """What the listener asks for on which brokers connect to each other. `context` returns that of TLS as it is now: certificates
    are renewed while a broker runs."""

    context: Callable[[], ssl.SSLContext] | None = None
    account: Account | None = None


OPEN = PeerSecurity()


def peer_security(config: BrokerConfig, passwords: Mapping[str, str]) -> PeerSecurity:
    """How to connect to the listener that brokers use among themselves; `passwords` are those of logbus.users.file. Raises
    ConfigError."""
    protocol, settings = config.protocol_of(config.inter_broker_listener), config.at_listener(config.inter_broker_listener)
    account = None
    if protocol.has_login:
        user = config.inter_broker_user
        if user not in passwords:
            raise ConfigError(f"logbus.inter.broker.user={user} has no line in logbus.users.file, which should have its password")
        new_nonce = partial(secrets.token_urlsafe, _NONCE_BYTES)
        mechanism = config.inter_broker_mechanism
        account = Account(mechanism=mechanism, user=user, password=passwords[user], new_nonce=new_nonce)
    return PeerSecurity(context=partial(client_context, settings) if protocol.has_tls else None, account=account)


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
