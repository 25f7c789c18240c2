"""What each Kafka error code means, in one place: which error it becomes, and a sentence that says what to do.

Every failed request of logbus.kafka is explained here, whichever module and library sent it. Codes are Kafka's own (positive) and
librdkafka's (negative: it got no answer, or no connection). A code that is not in the table becomes a `BrokerUnavailable` with
the broker's own message.

`ConnectionReports` tells a broker that is away from a slow one, by what librdkafka reports about its connections. Away: its name
is unknown, nothing listens at its address, or it hangs up during the handshake. Time changes none of that; usually the address or
a setting is wrong. Slow: its connections are accepted, if only by the kernel, or are still being made. A machine that swaps looks
like that, and so does a process that is stopped: it answers later, and what waits for it has to go on waiting.

Where a connection fails as it does at a listener with another protocol, the listener is asked which one it speaks
(`spoken_protocol`): that it wants TLS or a login is worth more to a user than how the connection ended.
"""

from __future__ import annotations

import logging
import re
import shlex
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError

from logbus.errors import AccessDenied, BrokerNotReady, BrokerUnavailable, GroupActive, GroupMissing, TopicMissing, UserError

THE_BROKER = "the broker"  # where a sentence may be shown to people who need not know its address

MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

# Temporary: a leader is being elected, or a coordinator is starting or moving. librdkafka does not call these retriable.
COMING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
)

# No connection, or no answer over it. Clients keep retrying on their own; a producer gives a record up in the end.
AWAY = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._MSG_TIMED_OUT,
)

# Why there is no connection. librdkafka reports these only through its error callback; the request itself just times out.
LOGIN_REFUSED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
CONNECTING = (KafkaError._SSL, *LOGIN_REFUSED)
TLS_FAILED = "SSL handshake failed"  # if the peer hung up, librdkafka gives the code _TRANSPORT: the port may not speak TLS

# Codes of ours: librdkafka has none for an alert, and reports a connection that ended; nor for a client that got no token; nor
# for a listener that speaks another protocol.
CERTIFICATE_REFUSED, NO_TOKEN, OTHER_PROTOCOL = -10_000, -10_001, -10_002
FINAL = (*LOGIN_REFUSED, OTHER_PROTOCOL)
TOKEN_FAILED = "acquire SASL OAUTHBEARER token"

# What librdkafka puts around such a message: "ssl://host:9093/bootstrap: ... (after 2ms in state SSL_HANDSHAKE)".
AROUND = re.compile(r"^\S+://\S+: | \(after \d+ms in state \w+\)$")

_MISSING = "{broker} has no topic {about!r}: create it, or ship something to it first"
_AUTHENTICATION = "authentication with {broker} failed: {message}. Check sasl.mechanism, sasl.username and sasl.password"
_GRANT = "kafka-acls --add --allow-principal {principal} --operation {needs}"
ANYBODY = "NAME"  # where the settings do not say as whom the broker sees this client

# The caller can fix it.
REFUSED: Mapping[int, str] = {
    KafkaError.TOPIC_EXCEPTION: "{about!r} cannot be the name of a topic: at most 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
    KafkaError.INVALID_PARTITIONS: "topic {about} cannot have that many partitions: at least one, never fewer than it has",
    KafkaError.INVALID_REPLICATION_FACTOR: "topic {about} cannot have that many replicas: leave --replication-factor out",
    KafkaError.INVALID_CONFIG: "topic {about} has no such setting, or not with that value: `logbus topic config TOPIC --all` "
    "lists them; times are whole milliseconds, sizes whole bytes",
    KafkaError.TOPIC_DELETION_DISABLED: "{broker} does not allow topics to be deleted: set its delete.topic.enable=true",
    KafkaError.POLICY_VIOLATION: "a policy of the broker forbids that for {about}",
    KafkaError.INVALID_REQUEST: "{broker} does not allow that for {about}",
    KafkaError.SECURITY_DISABLED: "{broker} keeps no ACLs: set its authorizer.class.name, or use `logbus up --secure`",
    KafkaError.UNACCEPTABLE_CREDENTIAL: "{broker} does not accept that name or password for the user {about!r}",
    KafkaError.MSG_SIZE_TOO_LARGE: "the max.message.bytes of topic {about} is smaller than a batch: raise it or lower batch.size",
}

# TLS, then SASL, then ACLs.
DENIED: Mapping[int, str] = {
    KafkaError._SSL: "no TLS connection to {broker}: {message}. Set security.protocol to SSL or SASL_SSL only if the port speaks "
    "TLS, and ssl.ca.location to the certificate of the authority that signed the broker's",
    CERTIFICATE_REFUSED: "{broker} wants a certificate of this client, one that it trusts ({message}): set "
    "ssl.certificate.location and ssl.key.location, or their like in ssl.keystore",
    NO_TOKEN: "this client got no token to log in to {broker} with: {message}. Check sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or oauth_cb",
    OTHER_PROTOCOL: "{broker} {message}",
    KafkaError._AUTHENTICATION: _AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED: _AUTHENTICATION,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "{broker} does not support this SASL mechanism: set sasl.mechanism to one of its "
    "sasl.enabled.mechanisms",
    KafkaError.ILLEGAL_SASL_STATE: "{broker} requires authentication: set security.protocol to SASL_SSL or SASL_PLAINTEXT",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user lacks {needs} on topic {about}: grant it, " + _GRANT + " --topic {about}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this user lacks {needs} on group {about}: grant it, " + _GRANT + " --group {about}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user lacks {needs} on the cluster: grant it, " + _GRANT + " --cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user lacks {needs} on that transactional.id: grant it, " + _GRANT,
}

# Error class and sentence by code. The broker's own message is appended if the sentence does not quote it.
MEANINGS: Mapping[int, tuple[type[UserError], str]] = {
    **dict.fromkeys(MISSING, (TopicMissing, _MISSING)),
    **{code: (UserError, sentence) for code, sentence in REFUSED.items()},
    **{code: (AccessDenied, sentence) for code, sentence in DENIED.items()},
    KafkaError.GROUP_ID_NOT_FOUND: (GroupMissing, "{broker} has no group {about!r}: `logbus group ls` lists those it has"),
    KafkaError.NON_EMPTY_GROUP: (GroupActive, "group {about} has members: stop them first"),
    KafkaError._MSG_TIMED_OUT: (BrokerUnavailable, "{broker} did not answer for too long: check that it runs"),
    KafkaError.LEADER_NOT_AVAILABLE: (
        BrokerNotReady,
        "a partition of topic {about} has no leader at the moment: `logbus cluster` shows which, and which brokers are missing",
    ),
}


def explain(
    error: KafkaError, about: str, *, broker: str = THE_BROKER, needs: str = "Describe", user: str = ANYBODY
) -> UserError:
    """The error in our words. `about` is the topic or group of the request, `needs` the ACL operation it requires of `user`."""
    explained = explain_code(error.code(), error.str(), about, broker=broker, needs=needs, user=user)
    if type(explained) is BrokerUnavailable and error.retriable():
        return BrokerNotReady(str(explained))
    return explained


def explain_code(
    code: int, message: str, about: str = "", *, broker: str = THE_BROKER, needs: str = "Describe", user: str = ANYBODY
) -> UserError:
    """The same, from a code and the message that came with it."""
    if code not in MEANINGS:
        return unavailable(message, about, broker=broker, kind=BrokerNotReady if code in COMING else BrokerUnavailable)
    kind, sentence = MEANINGS[code]
    principal = shlex.quote(f"User:{user}")
    text = sentence.format(broker=broker, about=about, needs=needs, message=message, principal=principal)
    quoted = f"the broker: {message}" if code > 0 else message
    return kind(text if "{message}" in sentence or not message or code in MISSING else f"{text} ({quoted})")


def failed_handshake(error: KafkaError) -> KafkaError | None:
    """Why no connection was made, from what librdkafka's callback reports; None for any other error."""
    message = error.str()
    if error.code() not in CONNECTING and TLS_FAILED not in message:
        return None
    code = error.code() if error.code() in CONNECTING else KafkaError._SSL
    return KafkaError(NO_TOKEN if TOKEN_FAILED in message else code, AROUND.sub("", message))


def unavailable(
    reason: str, about: str = "", *, broker: str = THE_BROKER, kind: type[BrokerUnavailable] = BrokerUnavailable
) -> BrokerUnavailable:
    """The error when there was no answer."""
    if reason == HANGS_UP:
        return kind(f"{broker} {reason}")
    subject = f" about {about!r}" if about else ""
    return kind(
        f"{broker} did not answer a request{subject}: {reason}. "
        "Check that it runs (`logbus up` or `logbus broker serve` starts one) and that bootstrap.servers is right"
    )


# How old a failed handshake may be and still explain why there is no answer; librdkafka repeats it every 30 s at least.
HANDSHAKE_SECONDS_MAX = 60.0

LOOK_SECONDS_MAX = 1.0  # a refusal comes at once

# "ssl://host:9093/bootstrap: Connect to ipv4#10.0.0.1:9093 failed: Connection refused (after 0ms in state CONNECT)"
ADDRESS = re.compile(r"^(?:\w+://)?(\S+:\d+)/\S+: ")
# The same after "[thrd:...]: ", about a peer that ends the connection when asked which requests it supports.
# A listener with SASL answers that question, and ends the connection at the next one: within moments, if nobody logged in.
HUNG_UP = re.compile(
    r"(?:\w+://)?([^\s/]+:\d+)/\S+: Disconnected.*(?: in state APIVERSION_QUERY|\(after \d{1,3}ms in state UP\))"
)
# How a failed handshake reads at a listener with another protocol: without TLS, or without a login.
FOREIGN = re.compile(r"PLAINTEXT broker listener|wrong version number|current SASL state")
HANG_UPS_MIN = 2  # a broker that is stopped ends young connections, too, and then there is none
HANGS_UP = (
    "ends each connection at once: security.protocol is not what this listener speaks (PLAINTEXT, SSL, SASL_PLAINTEXT or "
    "SASL_SSL), or it is no Kafka broker's port"
)
# "ssl://...: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42 (after 3ms in ...)"
ALERT = re.compile(r"/tls alert ([\w ]+): SSL alert number")


@dataclass(slots=True, eq=False)
class ConnectionReports:
    """What the handles of one client have reported. It is their logger, `note` their error callback; neither may refer to the
    client, or handle and client would keep each other alive. `protocol` is the client's security.protocol, in capitals."""

    logger: logging.Logger
    protocol: str = "PLAINTEXT"
    _asked: dict[str, str | None] = field(default_factory=dict, init=False)  # how the protocols of listeners differ, by address
    _handshake: tuple[float, KafkaError] | None = field(default=None, init=False)  # the last one that failed
    _failed: set[str] = field(default_factory=set, init=False)  # addresses
    _hang_ups: Counter[str] = field(default_factory=Counter, init=False)

    def log(self, level: int, template: str, *values: object) -> None:
        """Called by librdkafka, which reports only here that a peer hangs up."""
        line = template % values
        if (report := HUNG_UP.search(line)) is not None:
            self._hang_ups[report[1]] += 1
        if (alert := ALERT.search(line)) is not None:
            self._handshake = (time.monotonic(), KafkaError(CERTIFICATE_REFUSED, f"TLS alert {alert[1]}"))
        self.logger.log(level, template, *values)

    def note(self, error: KafkaError) -> None:
        address = ADDRESS.match(error.str())
        if (handshake := failed_handshake(error)) is not None:
            is_foreign = address is not None and FOREIGN.search(error.str()) is not None
            other = self._other_protocol(address[1]) if address is not None and is_foreign else None
            self._handshake = (time.monotonic(), handshake if other is None else KafkaError(OTHER_PROTOCOL, other))
        elif address is not None:
            self._failed.add(address[1])

    def _other_protocol(self, address: str) -> str | None:
        """What is wrong with security.protocol there; None if nothing is, or the listener does not say."""
        if address not in self._asked:
            spoken = spoken_protocol(address)
            advice = None
            if spoken is not None and spoken.name != self.protocol:
                login = f", and sasl.mechanism to one of {', '.join(spoken.mechanisms)}" if spoken.mechanisms else ""
                advice = f"speaks {spoken.name}, and security.protocol is {self.protocol}: set it to {spoken.name}{login}"
            self._asked[address] = advice
        return self._asked[address]

    def forget(self) -> None:
        """A broker has answered."""
        self._handshake = None
        self._asked.clear()
        self._failed.clear()
        self._hang_ups.clear()

    def failed_handshake(self) -> KafkaError | None:
        if self._handshake is None or self._handshake[0] < time.monotonic() - HANDSHAKE_SECONDS_MAX:
            return None
        return self._handshake[1]

    def away(self) -> list[str]:
        """Why, for each broker that is. An error may be over, or about one of a host's addresses only: so each is looked at."""
        reasons = {address: _connect_error(address) for address in tuple(self._failed)}
        self._failed.difference_update(address for address, reason in reasons.items() if reason is None)
        for address, count in tuple(self._hang_ups.items()):
            if count >= HANG_UPS_MIN:
                other = self._other_protocol(address)
                if other is not None:
                    self._handshake = (time.monotonic(), KafkaError(OTHER_PROTOCOL, other))
                reasons[address] = HANGS_UP
        return [reason for reason in reasons.values() if reason is not None]


class SpokenProtocol(NamedTuple):
    """What a listener expects: a name of security.protocol, and the mechanisms of SASL that it takes."""

    name: str
    mechanisms: tuple[str, ...] = ()


# A request that every Kafka since 1.0 answers before a login, with the mechanisms that it knows instead of this one, or, where it
# wants no login, with an error: SaslHandshake version 1, correlation id 0, no client id.
HANDSHAKE = struct.pack(">hhih", 17, 1, 0, -1) + struct.pack(">h", 1) + b"?"
ILLEGAL_SASL_STATE = 34
ANSWER_BYTES_MAX = 4_096


def spoken_protocol(address: str) -> SpokenProtocol | None:
    """Asks the listener at `host:port`, within some seconds; None if it does not say."""
    for has_tls in (True, False):
        try:
            code, mechanisms = _ask_mechanisms(address, has_tls)
        except (OSError, OverflowError, struct.error, UnicodeDecodeError):
            continue
        tls = "SSL" if has_tls else "PLAINTEXT"
        return SpokenProtocol(tls) if code == ILLEGAL_SASL_STATE else SpokenProtocol(f"SASL_{tls}", mechanisms)
    return None


def _ask_mechanisms(address: str, has_tls: bool) -> tuple[int, tuple[str, ...]]:
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        connection: socket.socket = stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS_MAX))
        if has_tls:
            unverified = ssl.create_default_context()  # nothing is told, and nothing believed but the names
            unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
            connection = stack.enter_context(unverified.wrap_socket(connection))
        connection.sendall(struct.pack(">i", len(HANDSHAKE)) + HANDSHAKE)
        answer = stack.enter_context(connection.makefile("rb"))
        (size,) = struct.unpack(">i", answer.read(4))
        body = answer.read(min(size, ANSWER_BYTES_MAX))
    _, code, count = struct.unpack_from(">ihi", body)
    names, position = [], 10
    for _ in range(count):
        (length,) = struct.unpack_from(">h", body, position)
        names.append(body[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return code, tuple(names)


def _connect_error(address: str) -> str | None:
    """Why no connection to `host:port` can be made; None where one is accepted, or may yet be."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS_MAX).close()
    except TimeoutError:
        return None
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
