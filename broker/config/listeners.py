"""Where the broker can be reached: listeners by name, as `NAME://host:port`.

A name tells what a listener is for (`INTERNAL` for the other brokers, `PLAINTEXT` for clients in the same network), so that each
kind of client is given addresses that it can reach. listener.security.protocol.map maps names to security protocols; only one
protocol is supported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

OFFERED_PROTOCOL = "PLAINTEXT"
_NAME = re.compile(r"[A-Z0-9_.-]+")
_PORT = re.compile(r"[0-9]{1,5}")  # `isdigit` also takes digits of other scripts
_EXAMPLE = "PLAINTEXT://127.0.0.1:9092"


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


def parse_listener(text: str, example: str = _EXAMPLE) -> Listener:
    """Parse one listener."""
    name, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not _PORT.fullmatch(port) or int(port) > 65535 or not _NAME.fullmatch(name.upper()):
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
        if not colon or not _NAME.fullmatch(name):
            raise ValueError("must look like PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT")
        if protocol != OFFERED_PROTOCOL:
            raise ValueError(f"protocol {protocol} of listener {name} is not offered, only {OFFERED_PROTOCOL}")
        pairs.append(f"{name}:{protocol}")
    return ",".join(dict.fromkeys(pairs))


def mapped_names(protocol_map: str) -> frozenset[str]:
    """The listener names that have a protocol; the supported protocol's own name needs no entry."""
    return frozenset({OFFERED_PROTOCOL, *(pair.partition(":")[0] for pair in protocol_map.split(","))})
