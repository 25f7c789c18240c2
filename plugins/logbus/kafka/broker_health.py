"""What brokers say on their /health pages: logbus's own broker has one where `logbus.metrics.listener` is set, Apache Kafka none.

A page on a broker's loopback is asked for only where that broker's own address is this machine's loopback, too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from logbus.errors import LogbusError
from logbus.kafka.client import Client
from logbus.kafka.cluster import LiveBroker

LISTENER = "logbus.metrics.listener"
SECONDS_MAX = 5.0  # the page is made by the broker's loop, at once
BYTES_MAX = 65_536
OK = "ok"


def troubles(client: Client, brokers: Iterable[LiveBroker]) -> dict[int, tuple[str, ...]]:
    """The lines of each broker whose page can be reached; none where all is well."""
    futures = [(broker, client.ask_broker_settings(broker.broker_id)) for broker in brokers]
    by_broker: dict[int, tuple[str, ...]] = {}
    for broker, future in futures:
        settings: Any = client.outcome(future, str(broker.broker_id))
        if isinstance(settings, LogbusError) or LISTENER not in settings:
            continue
        url = page_url(str(settings[LISTENER].value or ""), broker.host)
        if url is not None and (lines := read_page(url)) is not None:
            by_broker[broker.broker_id] = lines
    return by_broker


def page_url(listener: str, broker_host: str) -> str | None:
    """Where the page of a broker that clients reach at `broker_host` is; None if it has none, or if it is not for us."""
    parts = urlsplit(listener)
    if not parts.port:
        return None
    host = parts.hostname or ""
    if _is_everywhere(host):
        host = broker_host
    elif _is_loopback(host) and not _is_loopback(broker_host):
        return None
    return f"http://{f'[{host}]' if ':' in host else host}:{parts.port}/health"


def read_page(url: str) -> tuple[str, ...] | None:
    """What is wrong there; None without an answer."""
    opener = build_opener(ProxyHandler({}))  # a proxy would look from another machine
    with suppress(OSError, HTTPException):
        try:
            with opener.open(url, timeout=SECONDS_MAX) as answer:
                text = answer.read(BYTES_MAX)
        except HTTPError as unwell:
            text = unwell.read(BYTES_MAX)
        return tuple(line for line in text.decode(errors="replace").splitlines() if line and line != OK)
    return None


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_everywhere(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return not host
