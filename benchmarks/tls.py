"""What TLS and a login cost the broker: producing and consuming by SASL_SSL, handshakes and memory, beside an Apache Kafka with a
certificate of the same kind and the same clients.

Handshakes are whole ones by TLS 1.3, one after the other on each of two client threads. Neither side resumes a session here. The
client costs as much as a server, so the broker's CPU time says more than the rate.

Others are a client that asks for next to nothing, every 10 ms, without TLS (`costs/bystander.py`), while 500 connections begin a
handshake and go no further, and 50 log in with a wrong password, again and again, as fast as the broker refuses them.

A user that does not exist must not be told from one that does by the time that the broker takes: the first step of SCRAM, before
which it has looked the user up, is timed for both in turns, each in a connection of its own.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from logbus.waiting import PATIENCE_SECONDS
from rich.console import Console

from benchmarks import processes
from benchmarks.consume import consumer_figures
from benchmarks.contest import Contest, contest
from benchmarks.costs.bystander import Bystander
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import DEFAULT_BATCH, RECORD_BYTES, Load, Scale
from benchmarks.peers.authority import Authority
from benchmarks.peers.java import producer_rate
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.sides import KAFKA, OURS, LogSide, Opener, Side, fresh
from benchmarks.turns import Cost, compare, compare_costs, cost_of

HANDSHAKES = 4_000
CLIENT_THREADS = 2
IDLE_CONNECTIONS = 500
HALF_HANDSHAKES, WRONG_PASSWORDS, STRANGERS_SECONDS = 500, 50, 8.0
LOGINS = 200  # of each user
RECORD_HEAD = b"\x16\x03\x01\x02\x00"  # of a ClientHello of 512 bytes, of which the rest does not come
SCRAM, KNOWN_USER, UNKNOWN_USER = "SCRAM-SHA-512", "ann", "eve"
PASSWORD = "right-password"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
KIB = 1024


class TlsKafka(ApacheKafka):
    """With a listener for TLS beside the plain one."""

    def __init__(self, directory: Path, tls: str, logins: str, keystore: Path) -> None:
        super().__init__(directory)
        self._tls, self._logins, self._keystore = tls, logins, keystore

    def server_properties(self) -> dict[str, str]:
        lines = super().server_properties()
        lines["listener.security.protocol.map"] += ",SSL:SSL,SASL_SSL:SASL_SSL"
        for setting in ("listeners", "advertised.listeners"):
            lines[setting] += f",SSL://{self._tls},SASL_SSL://{self._logins}"
        users = f'{LOGIN_MODULE} required user_ann="{PASSWORD}";'
        lines |= {"listener.name.sasl_ssl.plain.sasl.jaas.config": users, "sasl.enabled.mechanisms": "PLAIN"}
        return lines | keystore_settings(self._keystore)


def keystore_settings(keystore: Path) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}


def sasl_handshake(mechanism: str) -> bytes:
    return struct.pack(">hhihh", 17, 1, 0, -1, len(mechanism)) + mechanism.encode()


def sasl_authenticate(said: bytes) -> bytes:
    return struct.pack(">hhihi", 36, 0, 1, -1, len(said)) + said


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSide(LogSide):
    """A broker whose load comes over TLS and with a password; topics are made and deleted without."""

    tls: str  # the listener that wants no password
    logins: str
    certificate: Path  # of the authority
    config: Path  # how clients connect

    @classmethod
    def over_tls(cls, server: LogbusBroker | ApacheKafka, tls: str, logins: str, certificate: Path, into: Path) -> TlsSide:
        plain, config = LogSide.of(server, into=into), into / "client.properties"
        words = tuple(f"{name}={value}" for name, value in client_settings(certificate).items())
        config.write_text("\n".join(words))
        generator = replace(plain.generator, address=logins, settings=words)
        return cls(
            server=server, tools=plain.tools, generator=generator, tls=tls, logins=logins, certificate=certificate, config=config
        )

    def _send_once(self, load: Load, topic: str, records: int) -> float:
        summary = self.tools.producer_performance(
            self.logins, topic, records=records, record_bytes=RECORD_BYTES, properties=load.properties, config=self.config
        )
        return producer_rate(summary)

    def connect(self, listener: str = "") -> ssl.SSLSocket:
        """A whole handshake."""
        host, _, port = (listener or self.tls).partition(":")
        context = ssl.create_default_context(cafile=str(self.certificate))
        return context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE_SECONDS), server_hostname=host)

    def handshakes(self, count: int) -> Cost:
        def several(_: int) -> None:
            for _ in range(count // CLIENT_THREADS):
                self.connect().close()

        def all_of_them() -> float:
            began = time.perf_counter()
            with ThreadPoolExecutor(CLIENT_THREADS) as threads:
                list(threads.map(several, range(CLIENT_THREADS)))
            return count / (time.perf_counter() - began)

        return cost_of(self.server, count, all_of_them)

    def idle_kib(self, count: int) -> float:
        """How much the broker's memory grows for a connection that does nothing."""
        before = self.server.rss_bytes()
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(self.connect())
            return (self.server.rss_bytes() - before) / KIB / count

    def p99_alone_ms(self) -> float:
        """Of a client beside which nobody does anything."""
        with Bystander(self.server.port) as bystander:
            bystander.longest_ms()
            time.sleep(STRANGERS_SECONDS)
            return bystander.waits_ms()[1]

    def p99_beside_strangers_ms(self) -> float:
        """Of another client."""
        is_over = threading.Event()

        def guess(_: int) -> None:
            while not is_over.is_set():
                with suppress(OSError), self.connect(self.logins) as connection:
                    for request in (sasl_handshake("PLAIN"), sasl_authenticate(b"\0ann\0wrong")):
                        ask(connection, request)

        host, _, port = self.tls.partition(":")
        with (
            Bystander(self.server.port) as bystander,
            ThreadPoolExecutor(WRONG_PASSWORDS) as threads,
            ExitStack() as stack,
        ):
            guesses = threads.map(guess, range(WRONG_PASSWORDS))
            bystander.longest_ms()
            for _ in range(HALF_HANDSHAKES):
                half = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_SECONDS))
                half.sendall(RECORD_HEAD)
            time.sleep(STRANGERS_SECONDS)
            _, percentile = bystander.waits_ms()
            is_over.set()
            list(guesses)
        return percentile

    def first_steps_ms(self, logins: int) -> tuple[float, float]:
        """The median time of SCRAM's first step, for a user that does not exist and for one that does."""
        times: dict[str, list[float]] = {UNKNOWN_USER: [], KNOWN_USER: []}
        for _ in range(logins):
            for user, taken in times.items():
                with self.connect(self.logins) as connection:
                    ask(connection, sasl_handshake(SCRAM))
                    began = time.perf_counter()
                    ask(connection, sasl_authenticate(f"n,,n={user},r=nonce".encode()))
                    taken.append((time.perf_counter() - began) * 1000)
        return median(times[UNKNOWN_USER]), median(times[KNOWN_USER])


def ask(connection: socket.socket, request: bytes) -> None:
    """Sends a request and receives the beginning of its answer."""
    connection.sendall(struct.pack(">i", len(request)) + request)
    connection.recv(1 << 10)


def client_settings(certificate: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{LOGIN_MODULE} required username="ann" password="{PASSWORD}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }


def _logbus(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    tls, logins = (f"127.0.0.1:{processes.free_port()}" for _ in range(2))
    authority, users = Authority(directory), directory / "users"
    users.touch(0o600)
    users.write_text(f"ann={PASSWORD}\n")
    server = LogbusBroker(directory / "server", settings=keystore_settings(authority.issue("server")))
    server.settings |= {"logbus.users.file": str(users), "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}"}
    server.settings["listeners"] = f"PLAINTEXT://{server.bootstrap},SSL://{tls},SASL_SSL://{logins}"
    # Everything is on loopback here, where TLS without certificates of clients is allowed.
    started, load = stack.enter_context(server), fresh(directory / "load")
    return {OURS: TlsSide.over_tls(started, tls, logins, authority.certificate, load)}


def _kafka(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    tls, logins = (f"127.0.0.1:{processes.free_port()}" for _ in range(2))
    authority = Authority(directory)
    started = stack.enter_context(TlsKafka(directory / "server", tls, logins, authority.issue("server")))
    return {KAFKA: TlsSide.over_tls(started, tls, logins, authority.certificate, fresh(directory / "load"))}


OPENERS = (Opener(names=(OURS,), open=_logbus), Opener(names=(KAFKA,), open=_kafka))


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with contest(OPENERS, scale, console) as running:
        return [
            *_produced(running),
            *consumer_figures(running),
            *_handshakes(running),
            running.memory(KAFKA, Target(ratio_max=0.2)),
        ]


def _produced(running: Contest) -> Sequence[Figure]:
    measured = running.produce(DEFAULT_BATCH, (OURS, KAFKA))
    pair = measured[OURS], measured[KAFKA]
    return compare_costs("producer", pair, against=KAFKA, rate=Target(ratio_min=1.0), cpu=Target(ratio_max=0.8))


def _handshakes(running: Contest) -> Sequence[Figure]:
    count = running.scale.records(HANDSHAKES)
    names = (OURS, KAFKA)
    measured = running.measure("handshakes", lambda side, _: _tls(side).handshakes(count), names)
    pair = measured[OURS], measured[KAFKA]
    idle = running.measure("idle connections", lambda side, _: _tls(side).idle_kib(IDLE_CONNECTIONS), names, rounds=1)
    beside = running.measure("strangers", lambda side, _: _tls(side).p99_beside_strangers_ms(), names)
    alone = running.measure("nobody else", lambda side, _: _tls(side).p99_alone_ms(), (OURS,))
    logins = running.scale.records(LOGINS)
    steps = running.measure("first step of a login", lambda side, _: _tls(side).first_steps_ms(logins), (OURS,))
    return (
        compare("handshakes", "a second", lambda one: one.records_per_second, pair, against=KAFKA, target=Target(ratio_min=1.0)),
        compare("handshake: broker CPU", "ms", lambda one: one.cpu_seconds_per_million / 1000, pair, against=KAFKA),
        compare("memory of an idle connection", "KiB", float, (idle[OURS], idle[KAFKA]), against=KAFKA),
        compare("others beside strangers: p99", "ms", float, (beside[OURS], beside[KAFKA]), against=KAFKA),
        compare(
            "others beside strangers: p99",
            "ms",
            float,
            (beside[OURS], alone[OURS]),
            against="logbus, nobody else",
            target=Target(ratio_max=2.0),
        ),
        figure(
            "first step of a login, of a user that does not exist",
            "ms",
            ours=[unknown for unknown, _ in steps[OURS].rounds],
            peer=[existing for _, existing in steps[OURS].rounds],
            against="logbus, one that exists",
            target=Target(ratio_min=0.9, ratio_max=1.1),
        ),
    )


def _tls(side: Side) -> TlsSide:
    assert isinstance(side, TlsSide)
    return side
