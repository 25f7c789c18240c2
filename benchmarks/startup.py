"""From starting the process to the first answer of a server on an empty, prepared directory.

An answer is what a client needs to continue: Metadata that names a broker, AMQP's Connection.Start, OpenWire's greeting.
"""

from __future__ import annotations

import socket
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from logbus.waiting import wait_until
from rich.console import Console

from benchmarks.figures import Figure, Target
from benchmarks.loads import Scale
from benchmarks.peers.activemq import ActiveMq
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.peers.rabbitmq import RabbitMq
from benchmarks.peers.server import Server
from benchmarks.processes import StartFailed, tail
from benchmarks.sides import ACTIVEMQ, KAFKA, OURS, RABBITMQ
from benchmarks.turns import compare, in_turns

POLL_SECONDS = 0.005
ANSWER_SECONDS_MAX = 10.0
METADATA_V4_OF_NO_TOPIC = struct.pack(">ihhihib", 15, 3, 4, 1, -1, 0, 0)
_AMQP_0_9_1 = b"AMQP\x00\x00\x09\x01"


def kafka_names_a_broker(port: int) -> bool:
    """Whether the Metadata v4 response has brokers: their number follows length, correlation id and throttle time."""
    answer = _ask(port, METADATA_V4_OF_NO_TOPIC, 16)
    return len(answer) == 16 and int.from_bytes(answer[12:]) > 0


def amqp_greets(port: int) -> bool:
    return _ask(port, _AMQP_0_9_1, 1) == b"\x01"  # a method frame


def openwire_greets(port: int) -> bool:
    return b"ActiveMQ" in _ask(port, b"", 13)


STARTED: Mapping[str, tuple[Callable[[Path], Server], Callable[[int], bool]]] = {
    OURS: (LogbusBroker, kafka_names_a_broker),
    KAFKA: (ApacheKafka, kafka_names_a_broker),
    RABBITMQ: (RabbitMq, amqp_greets),
    ACTIVEMQ: (ActiveMq, openwire_greets),
}


def startup_figures(scale: Scale, console: Console) -> Sequence[Figure]:
    entrants = {name: partial(_seconds, name) for name in STARTED}
    measured = in_turns("start", entrants, rounds=scale.rounds, console=console, prepare=scale.settle)
    targets = {KAFKA: Target(ratio_max=0.1)}
    return [
        compare("start to first answer", "s", float, (measured[OURS], measured[peer]), against=peer, target=targets.get(peer))
        for peer in STARTED
        if peer != OURS
    ]


def _seconds(name: str, _: int) -> float:
    """One start on a fresh directory, whatever the round."""
    build, answers = STARTED[name]
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch:
        server = build(Path(scratch, "server"))
        server.prepare()
        try:
            started = time.monotonic()
            server.launch()
            wait_until(partial(_has_answered, server, answers), what=name, poll_seconds=POLL_SECONDS)
            return time.monotonic() - started
        finally:
            server.stop()


def _has_answered(server: Server, answers: Callable[[int], bool]) -> bool:
    if answers(server.port):
        return True
    if not server.alive:
        raise StartFailed(f"{server.name} gave no answer:\n{tail(server.log_path)}")
    return False


def _ask(port: int, question: bytes, answer_bytes: int) -> bytes:
    """The first bytes of an answer; none from a server that is not up yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as connection:
            connection.sendall(question)
            return connection.recv(answer_bytes, socket.MSG_WAITALL)
    except OSError:
        return b""
