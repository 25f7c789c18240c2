"""How the text of a setting is parsed, and how a dataclass field becomes a setting.

A parser takes the text and returns the value; the ValueError that it raises completes the sentence "name=text: ...".

Listeners are written as `NAME://host:port`. A name tells what a listener is for (`INTERNAL` for the other brokers, `PLAINTEXT`
for clients in the same network), so that each kind of client is given addresses it can reach. listener.security.protocol.map maps
names to security protocols; the name of a protocol means that protocol without an entry.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any

Parser = Callable[[str], Any]

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")  # more digits are out of every range, and `int` refuses thousands of them
_DECIMAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PORT = re.compile(r"[0-9]{1,5}")  # `isdigit` also takes digits of other scripts
_LISTENER_NAME = re.compile(r"[A-Z0-9_.-]+")
_LISTENER_EXAMPLE = "PLAINTEXT://127.0.0.1:9092"
AUTHORIZERS = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer")


def setting(
    name: str, default: Any, parse: Parser, *, topic: str | None = None, per_listener: bool = False, is_secret: bool = False
) -> Any:
    """A dataclass field for the Kafka setting `name`; `topic` is its name as a topic override, if it can be one. With
    `per_listener`, `listener.name.NAME.` before it sets it for one listener. The value of a secret is shown to nobody."""
    marks = {"name": name, "parse": parse, "topic": topic, "per_listener": per_listener, "is_secret": is_secret}
    return field(default=default, metadata=marks)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name; empty if no known name is similar."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def whole_number(text: str) -> int:
    """For settings and files. `int` also takes `1_000`, `+1` and the digits of other scripts."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def between(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        value = whole_number(text.strip())  # spaces around it are no part of it, for Kafka neither
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    parse.__name__ = f"a whole number from {low} to {high}"
    return parse


def only(value: int, why: str) -> Parser:
    """For a Kafka setting that has only one possible value here; `why` explains that in the error message."""

    def parse(text: str) -> int:
        if text != str(value):
            raise ValueError(f"must be {value}: {why}")
        return value

    return parse


def boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text.strip() not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return text.strip()

    return parse


def directory(text: str) -> Path:
    if "," in text:
        raise ValueError("must be one directory: several log directories are not supported")
    return Path(text).expanduser()


def ratio(text: str) -> float:
    if not _DECIMAL.fullmatch(text.strip()) or not 0 <= float(text) <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(text)


def policies_of_cleanup(text: str) -> str:
    policies = [part.strip() for part in text.split(",")]
    if not set(policies) <= {"compact", "delete"} or len(set(policies)) != len(policies):
        raise ValueError("must be delete, compact, or compact,delete")
    return ",".join(policies)


def zookeeper_servers(text: str) -> str:
    """`host:port,host:port/chroot`, without spaces; the default port is ZooKeeper's 2181."""
    if not text.strip():
        return ""
    servers, _, chroot = text.strip().partition("/")
    whole = []
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or server.strip().endswith("]"):  # an IPv6 address without a port
            host, port = server.strip(), "2181"
        is_address = bool(host) and host.startswith("[") == host.endswith("]")
        if not is_address or not _PORT.fullmatch(port) or not 0 < int(port) <= 65535:
            raise ValueError("must look like host1:2181,host2:2181/chroot (the chroot may be left out)")
        whole.append(f"{host}:{port}")
    chroot = chroot.rstrip("/")
    if chroot and not {"", ".", ".."}.isdisjoint(chroot.split("/")):
        raise ValueError(f"the chroot /{chroot} is not a path")
    return ",".join(whole) + (f"/{chroot}" if chroot else "")


class SecurityProtocol(StrEnum):
    """What a listener's connections begin with, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener. An empty host means every interface, with IPv4 and IPv6; port 0 means that the system chooses one."""

    host: str
    port: int
    name: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.name}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_every_interface(self) -> bool:
        return self.host in ("", "0.0.0.0", "::")


def parse_listener(text: str, example: str = _LISTENER_EXAMPLE) -> Listener:
    """Parse one listener."""
    name, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not _PORT.fullmatch(port) or int(port) > 65535 or not _LISTENER_NAME.fullmatch(name.upper()):
        raise ValueError(f"must look like {example}")
    return Listener(host=host.strip("[]"), port=int(port), name=name.upper())


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Parse a list of listeners with distinct names and ports; as in Kafka, an IPv4 and an IPv6 address may share a port."""
    listeners = tuple(map(parse_listener, text.split(",")))
    if len({listener.name for listener in listeners}) < len(listeners):
        raise ValueError("gives two listeners the same name")
    by_port: dict[int, list[int]] = {}
    for listener in listeners:
        by_port.setdefault(listener.port, []).append(_ip_version(listener.host))
    if any(port and len(versions) > 1 and sorted(versions) != [4, 6] for port, versions in by_port.items()):
        raise ValueError("gives two listeners the same port: only an IPv4 and an IPv6 address may share one")
    return listeners


def _ip_version(host: str) -> int:
    """4 or 6; 0 if the host is a name, or every interface."""
    try:
        return ip_address(host).version
    except ValueError:
        return 0


def parse_advertised(text: str) -> tuple[Listener, ...] | None:
    """The same for advertised addresses; None if the text is empty. A port may occur twice, on different hosts."""
    if not text.strip():
        return None
    listeners = tuple(map(parse_listener, text.split(",")))
    if len({listener.name for listener in listeners}) < len(listeners):
        raise ValueError("gives one listener two addresses")
    return listeners


def parse_authorizer(text: str) -> str:
    """One of the names by which Kafka's configurations turn ACLs on."""
    if text.strip() not in ("", *AUTHORIZERS):
        raise ValueError(f"must be {AUTHORIZERS[0]}, or empty for no ACLs")
    return text.strip()


def parse_principals(text: str) -> str:
    """`User:ann;User:bob`; semicolons, since the name of a certificate has commas."""
    principals = [part.strip() for part in text.split(";") if part.strip()]
    if not all(re.fullmatch(r"[^:]+:.+", principal) for principal in principals):
        raise ValueError("must look like User:ann;User:bob")
    return ";".join(principals)


def parse_metrics_listener(text: str) -> Listener | None:
    """Where metrics are served; None if they are not."""
    if not text:
        return None
    listener = parse_listener(text, "http://127.0.0.1:9404")
    if listener.name != "HTTP":
        raise ValueError(f"protocol {listener.name} is not offered, only HTTP")
    return listener


def parse_protocol_map(text: str) -> str:
    """`NAME:PROTOCOL,NAME:PROTOCOL`."""
    pairs = []
    for pair in text.split(","):
        name, colon, protocol = pair.strip().upper().partition(":")
        if not colon or not _LISTENER_NAME.fullmatch(name):
            raise ValueError("must look like PLAINTEXT:PLAINTEXT,INTERNAL:SASL_SSL")
        if protocol not in list(SecurityProtocol):
            raise ValueError(
                f"there is no protocol {protocol} for listener {name}: it must be one of {', '.join(SecurityProtocol)}"
            )
        pairs.append(f"{name}:{protocol}")
    return ",".join(dict.fromkeys(pairs))


def protocols_by_name(protocol_map: str) -> dict[str, SecurityProtocol]:
    """The protocol of each listener name that has one."""
    pairs = (pair.split(":") for pair in protocol_map.split(","))
    return {protocol.value: protocol for protocol in SecurityProtocol} | {name: SecurityProtocol(text) for name, text in pairs}


_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def sasl_mechanisms(text: str) -> tuple[str, ...]:
    mechanisms = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",")))
    if not set(mechanisms) <= set(_MECHANISMS):
        raise ValueError(f"must be a list of {', '.join(_MECHANISMS)} (there is no Kerberos)")
    return mechanisms


def address_of_keys(text: str) -> str:
    if text and not text.startswith(("https://", "file://")):
        raise ValueError("must begin with https:// or file://: who can change the keys on their way can log in as anybody")
    return text


def comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def store_type(text: str) -> str:
    """How a file of keys or certificates is written."""
    kind = text.strip().upper()
    if kind == "JKS":
        raise ValueError(
            "is a format that only Java reads: convert the file with `keytool -importkeystore -srckeystore FILE -destkeystore "
            "FILE.p12 -deststoretype PKCS12` and set PKCS12"
        )
    if kind not in ("PEM", "PKCS12"):
        raise ValueError("must be PEM or PKCS12")
    return kind


def tls_versions(text: str) -> tuple[str, ...]:
    versions = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(versions) <= {"TLSv1.2", "TLSv1.3"}:
        raise ValueError("must be TLSv1.2, TLSv1.3 or both: older versions are not safe")
    return versions
