"""Whether a broker that does not answer is away or slow, from what librdkafka reports about its connections.

Away: its name is unknown, nothing listens at its address, or it hangs up during the handshake. Time changes none of that; usually
the address or a setting is wrong. Slow: its connections are accepted, if only by the kernel, or are still being made. A machine
that swaps looks like that, and so does a process that is stopped: it answers later, and what waits for it has to go on waiting.
"""

from __future__ import annotations

import logging
import re
import socket
import time

from confluent_kafka import KafkaError

from logbus.kafka.errors import failed_handshake

# How old a failed handshake may be and still explain why there is no answer; librdkafka repeats it every 30 s at least.
HANDSHAKE_SECONDS_MAX = 60.0

LOOK_SECONDS_MAX = 1.0  # a refusal comes at once

# "ssl://host:9093/bootstrap: Connect to ipv4#10.0.0.1:9093 failed: Connection refused (after 0ms in state CONNECT)"
ADDRESS = re.compile(r"^(?:\w+://)?(\S+:\d+)/\S+: ")
# The same after "[thrd:...]: ", about a peer that ends the connection when asked which requests it supports.
HUNG_UP = re.compile(r"(?:\w+://)?([^\s/]+:\d+)/\S+: Disconnected.* in state APIVERSION_QUERY")
HANGS_UP = "the port hangs up: does a Kafka broker listen there, and does security.protocol fit?"


class ConnectionReports:
    """What the handles of one client have reported. It is their logger, `note` their error callback; neither may refer to the
    client, or handle and client would keep each other alive."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._handshake: tuple[float, KafkaError] | None = None  # the last one that failed
        self._failed: set[str] = set()  # addresses
        self._hung_up: set[str] = set()

    def log(self, level: int, template: str, *values: object) -> None:
        """Called by librdkafka, which reports only here that a peer hangs up."""
        if (found := HUNG_UP.search(template % values)) is not None:
            self._hung_up.add(found[1])
        self._logger.log(level, template, *values)

    def note(self, error: KafkaError) -> None:
        if (found := failed_handshake(error)) is not None:
            self._handshake = (time.monotonic(), found)
        elif (address := ADDRESS.match(error.str())) is not None:
            self._failed.add(address[1])

    def forget(self) -> None:
        """A broker has answered."""
        self._handshake = None
        self._failed.clear()
        self._hung_up.clear()

    def failed_handshake(self) -> KafkaError | None:
        if self._handshake is None or self._handshake[0] < time.monotonic() - HANDSHAKE_SECONDS_MAX:
            return None
        return self._handshake[1]

    def away(self) -> list[str]:
        """Why, for each broker that is. An error may be over, or about one of a host's addresses only: so each is looked at."""
        found = {address: refusal(address) for address in tuple(self._failed)}
        self._failed.difference_update(address for address, reason in found.items() if reason is None)
        found |= dict.fromkeys(tuple(self._hung_up), HANGS_UP)
        return [reason for reason in found.values() if reason is not None]


def refusal(address: str) -> str | None:
    """Why no connection to `host:port` can be made; None where one is accepted, or may yet be."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS_MAX).close()
    except TimeoutError:
        return None
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
