"""The broker process: the engine, and around it the sockets, the signals and the lock on its data. Closed by default: a listener
that others can reach, and that asks nobody who they are, does not start without the words.

That is judged by the address that a socket is bound to, not by the text of the setting: a host name may lead anywhere.

Start: bind, then lock and recover the data directory, then serve. The port is bound first so that a port in use is reported at
once. Stop (SIGTERM, SIGINT, SIGHUP): accept no new requests; flush everything written; write checkpoints and the clean-shutdown
marker; release the lock.
"""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logbus_broker import engine, errors, logs
from logbus_broker.api.users import read_users_file
from logbus_broker.clock import SystemClock
from logbus_broker.filesystem import FileSystem, OpenFiles
from logbus_broker.log.thread_pool import KernelSync, SystemThreadPool
from logbus_broker.metrics import CONTENT_TYPE, health, metrics_page
from logbus_broker.network.acceptor import bind
from logbus_broker.network.http import NAMES_OF_LOOPBACK, HttpAnswer, HttpEndpoint, text
from logbus_broker.network.poller import Poller, Wakeup
from logbus_broker.network.server import Server
from logbus_broker.network.throttling import Throttle
from logbus_broker.setting_parsers import Listener, SecurityProtocol
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:
    from logbus_broker.cluster.zookeeper import ZooKeeperStore
    from logbus_broker.cluster_engine import ClusterEnvironment
    from logbus_broker.network.certificates import TlsListener
    from logbus_broker.network.gate import Gate


WORDS = "logbus.allow.unauthenticated"
METRICS_WORDS = "logbus.metrics.allow.unauthenticated"


def reach_of(address: str) -> str:
    """From where a listener that is bound to this address can be reached; empty if only from this machine."""
    parsed = ip_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_unspecified:
        return "every interface"
    return "" if parsed.is_loopback else "an address of the network"


def knows_its_clients(listener: Listener, config: BrokerConfig) -> bool:
    """Whether the clients of one of the listeners log in, or show a certificate."""
    protocol = config.protocol_of(listener.name)
    asks_for_certificates = config.at_listener(listener.name).ssl_client_auth == "required"
    return protocol.has_login or (protocol is SecurityProtocol.SSL and asks_for_certificates)


def why_closed(listener: Listener, address: str, config: BrokerConfig) -> str | None:
    """Why a listener bound to `address` may not be opened, and what to do; None if it may. That for metrics has no login."""
    reach, is_metrics = reach_of(address), listener == config.metrics_listener
    if not reach or (not is_metrics and knows_its_clients(listener, config)):
        return None
    words = METRICS_WORDS if is_metrics else WORDS
    if is_metrics:
        setting, scheme, may, others = "logbus.metrics.listener", "http", "see the names and sizes of topics and groups", ""
    else:
        setting, scheme, may = "listeners", listener.name, "read, write and delete everything"
        others = "to let in clients with a certificate, use SSL and ssl.client.auth=required (docs/security.md); "
    written = f"{scheme}://{str(listener).partition('://')[2]}"
    return (
        f"{setting}={written} is {reach} and asks nobody for a login: anyone who can connect could {may}. For this machine only, "
        f"set {setting}={scheme}://127.0.0.1:{listener.port}; {others}if all who can connect may do that, add --override "
        f"{words}=true"
    )


def allowed_by(listener: Listener, config: BrokerConfig) -> str:
    """The setting by which it is opened nevertheless; empty if none does."""
    if config.allow_unauthenticated:
        return WORDS
    return METRICS_WORDS if listener == config.metrics_listener and config.metrics_allow_unauthenticated else ""


# The broker process: the engine, and around it the sockets, the signals and the lock on its data.


logger = logging.getLogger("broker.node")

# A pool thread that returns from fsync waits for the interpreter lock; with Python's default switch interval of 5 ms, that wait
# measured nearly as long as the flush itself.
_SWITCH_INTERVAL_SECONDS = 0.0005
_FILES_PER_PARTITION = 2
_FILES_SPARE = 64
_END_SESSION_SECONDS = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SESSION_IDS_FIRST_MAX = 1 << 30  # session ids have 31 bits: this leaves as many again to count up


class LogBroker:
    """One broker process."""

    def __init__(self, config: BrokerConfig, filesystem: FileSystem | None = None) -> None:
        self._clock = clock = SystemClock()
        self._started = clock.monotonic()
        self._store: ZooKeeperStore | None = None
        self._error: errors.BrokerError | None = None  # why the process stops without a signal
        self._users = read_users_file(Path(config.users_file).expanduser()) if config.users_file else {}
        self._config = config
        # Bound before the directory is opened: recovery may take a minute, and a port in use should not be discovered only
        # afterwards. No connection is accepted until `serve`.
        self._listening = {listener.name: bind(listener) for listener in config.listeners}
        ports = {name: sock.getsockname()[1] for name, sock in self._listening.items()}
        self.listeners = [replace(listener, port=ports[listener.name]) for listener in config.listeners]
        filesystem = filesystem or FileSystem()
        filesystem.open_files = open_files = OpenFiles(raise_open_files_limit())
        metrics = bind(config.metrics_listener) if config.metrics_listener else None
        self._bound = [(listener, self._listening[listener.name].getsockname()[0]) for listener in config.listeners]
        if metrics is not None and config.metrics_listener is not None:
            self._bound.append((config.metrics_listener, metrics.getsockname()[0]))
        self._refuse_if_exposed()
        self._tls = _tls_listeners(config)
        self._wakeup = Wakeup()
        kernel = KernelSync.open() if config.flush_in_kernel else None
        if config.flush_in_kernel and kernel is None:
            logger.info("this system offers no asynchronous flush: %d pool threads flush", config.flush_threads)
        # One poller for clients, connections to other brokers and the threads' wake-up pipe: the loop sleeps in one place.
        poller: Poller[Any] = Poller()
        thread_pool = SystemThreadPool(config.background_threads, config.flush_threads, self._wakeup.wake, kernel)
        self._engine = engine.Engine(
            config,
            clock=clock,
            filesystem=filesystem,
            thread_pool=thread_pool,
            ports=ports,
            new_id=uuid.uuid4,
            freeze=gc.freeze,
            environment=self._cluster_environment(thread_pool, poller, clock) if config.is_clustered else None,
            on_ready=self._entered,
        )
        self._metrics = None if metrics is None else self._metrics_endpoint(metrics, poller, open_files.readers_end)
        self._server = Server(
            self._listening,
            dispatch=self._engine.dispatch,
            turn=self._engine,
            config=config,
            per_ip_max=lambda: self._engine.partitions.settings.current.connections_per_ip_max,
            clock=clock,
            wakeup=self._wakeup,
            kernel=kernel,
            network=self._engine.counters.network,
            descriptors_end=open_files.connections_end,
            endpoint=self._metrics,
            each_sweep=self._sweep,
            defect=self._engine.health.defect,
            poller=poller,
            on_closed=self._engine.disconnected,
            is_open=self._engine.is_ready and not self._users,
            fast_path=self._engine.fast_path,
            throttle=Throttle(self._engine.context.quotas, clock.monotonic),
            gates=self._open_gates(config) if any(map(self._has_login, config.listeners)) else {},
            connect={listener.name: listener.connection for listener in self._tls},
        )
        self._sweep()

    def _metrics_endpoint(self, sock: socket.socket, poller: Poller[Any], descriptors_end: int) -> HttpEndpoint:
        """Served by the loop, not by a thread: a page that can be read proves that the loop is running, which is what a health
        check is for."""
        address = sock.getsockname()[0]
        return HttpEndpoint(
            sock,
            {"/metrics": self._page, "/health": self._health},
            poller=poller,
            now=self._clock.monotonic,
            descriptors_end=descriptors_end,
            names=() if reach_of(address) else {*NAMES_OF_LOOPBACK, address},
        )

    def _sweep(self) -> None:
        now = self._clock.now_ms() / 1000
        logs.report_suppressed(now)
        for listener in self._tls:
            listener.sweep(now)
            self._engine.counters.network.certificates[listener.name] = listener.expires_at

    def _has_login(self, listener: Listener) -> bool:
        return self._config.protocol_of(listener.name).has_login

    def _open_gates(self, config: BrokerConfig) -> Mapping[str, Gate]:
        from logbus_broker.network.gate import open_gates  # a broker without logins needs none of it

        fast_path, engine = self._engine.fast_path, self._engine
        connect = fast_path.connect if fast_path is not None else lambda: None
        return open_gates(config, engine.context, dispatch=engine.dispatch, connect_fast_path=connect)

    def _cluster_environment(self, thread_pool: SystemThreadPool, poller: Poller[Any], clock: SystemClock) -> ClusterEnvironment:
        """The real one, as opposed to that of tests."""
        # Imported here and not above: a standalone broker needs none of it.
        import random
        from itertools import count

        from logbus_broker.cluster_engine import ClusterEnvironment
        from logbus_broker.network.peer import PeerConnections, listens_at, resolver
        from logbus_broker.network.peer_connection import peer_security

        config, chance = self._config, random.SystemRandom()
        security = peer_security(config, self._users)
        self._store = zookeeper_store(config, clock, self._wakeup.wake)
        self._store.silence_seconds_max = config.replica_flush_ms_max / 1000
        return ClusterEnvironment(
            store=self._store,
            connect=lambda events: PeerConnections(
                config.broker_id,
                events=events,
                poller=poller,
                clock=clock,
                resolve=resolver(thread_pool),
                jitter=chance.random,
                config=config,
                security=security,
            ),
            boot_id=boot_id(),
            session_ids=count(chance.randrange(1, _SESSION_IDS_FIRST_MAX)),
            on_fenced=self._fenced,
            answers=listens_at,
        )

    def _entered(self, error: errors.BrokerError | None) -> None:
        """This broker has joined its cluster, or cannot. Before the first login there must be users: then it is ready."""
        self._error = error
        if error is not None:
            self._server.stop()
        elif self._users:
            users, self._users = self._users, {}
            self._engine.add_users(users, self._entered)
        else:
            self._server.open()
            self._say_ready()

    def _fenced(self, error: errors.BrokerError) -> None:
        self._error = error
        self._server.stop()

    def _page(self) -> HttpAnswer:
        return HttpAnswer(status=200, content_type=CONTENT_TYPE, blocks=metrics_page(self._engine))

    def _health(self) -> HttpAnswer:
        healthy, line = health(self._engine)
        return text(200 if healthy else 503, line)

    def serve(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP, then stop cleanly. StartupError if the broker cannot join its cluster."""
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self._handle_signals()
        self._check_open_files()
        self._warn_if_exposed()
        if self._engine.is_ready:
            self._entered(None)
        if self._metrics is not None and self._config.metrics_listener is not None:
            served = replace(self._config.metrics_listener, port=self._metrics.port)
            logger.info("metrics are at %s/metrics", str(served).lower())
        try:
            self._server.run()
        finally:
            for sock in self._listening.values():
                # First close the listeners, then the engine (flushes, checkpoints), then the session: while the session lives,
                # this broker still counts as alive. If it ended earlier, the controller would elect other leaders before the last
                # records are on disk.
                sock.close()
            if self._store is not None:
                self._store.silence_seconds_max = inf
            clean = self._engine.close()
            self._end_session()
            self._wakeup.close()
            logger.info("stopped%s", "" if clean else "; the next start will recover what could not be flushed")
        if self._error is not None:
            raise self._error

    def _say_ready(self) -> None:
        partitions = self._engine.partitions
        logger.info(
            "broker %d is ready on %s: %d topics, %d partitions in %s, started in %.0f ms",
            self._config.broker_id,
            ", ".join(map(str, self.listeners)),
            len(partitions.registry),
            len(partitions),
            self._config.log_dirs,
            (self._clock.monotonic() - self._started) * 1000,
        )

    def _end_session(self) -> None:
        """Let the other brokers see at once that this one is gone. Without an answer, the session expires on its own."""
        if self._store is None:
            return
        ended: list[None] = []
        self._store.close(lambda: ended.append(None))
        until = self._clock.monotonic() + _END_SESSION_SECONDS
        while not ended and (left := until - self._clock.monotonic()) > 0:
            self._wakeup.wait(left)
            self._store.drain()

    def _handle_signals(self) -> None:
        def stop(number: int, _frame: Any) -> None:
            logger.info("%s: stopping", signal.Signals(number).name)
            # In a cluster, leadership is handed over first, while clients are still served; the loop stops when that is done. A
            # second signal stops it at once.
            self._engine.leave(self._server.stop)
            self._wakeup.wake()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: a closed terminal must not end it
            signal.signal(signal.SIGHUP, stop)

    def _refuse_if_exposed(self) -> None:
        for listener, address in self._bound:
            reason = why_closed(listener, address, self._config)
            if reason and not allowed_by(listener, self._config):
                raise errors.StartupError(reason)

    def _warn_if_exposed(self) -> None:
        for listener, address in self._bound:
            if why_closed(listener, address, self._config):
                access = "sees all metrics" if listener == self._config.metrics_listener else "has full access"
                logger.warning(
                    "%s is %s, and there is no authentication: anyone who can connect %s (%s=true)",
                    listener,
                    reach_of(address),
                    access,
                    allowed_by(listener, self._config),
                )

    def _check_open_files(self) -> None:
        limit = raise_open_files_limit()
        partition_count = len(self._engine.partitions)
        needed = partition_count * _FILES_PER_PARTITION + self._config.connections_max + _FILES_SPARE
        if needed > limit:
            logger.warning(
                "%d open files are allowed; %d partitions and %d connections may need %d: raise `ulimit -n`",
                limit,
                partition_count,
                self._config.connections_max,
                needed,
            )


def zookeeper_store(config: BrokerConfig, clock: SystemClock, wake: Callable[[], None]) -> ZooKeeperStore:
    """The connection to ZooKeeper that the settings describe, not begun."""
    from logbus_broker.cluster.zookeeper import Access, ZooKeeperStore
    from logbus_broker.network.certificates import zookeeper_encryption

    access = Access(
        encrypt=zookeeper_encryption(config) if config.zookeeper_tls else None,
        identity=_identity(Path(config.zookeeper_auth_file).expanduser()) if config.zookeeper_auth_file else "",
        is_private=config.zookeeper_set_acl,
    )
    return ZooKeeperStore(config.zookeeper_connect, config.zookeeper_session_ms, wake, clock=clock, access=access)


def _tls_listeners(config: BrokerConfig) -> list[TlsListener]:
    names = [listener.name for listener in config.listeners if config.protocol_of(listener.name).has_tls]
    if not names:
        return []
    # Imported here and not above: a broker without TLS needs none of it.
    from logbus_broker.network.certificates import TlsListener
    from logbus_broker.network.tls import HandshakeShare

    handshakes = HandshakeShare()
    return [TlsListener(name, config, handshakes=handshakes) for name in names]


def _identity(path: Path) -> str:
    """In ZooKeeper, as `NAME:PASSWORD`."""
    setting = "logbus.zookeeper.auth.file"
    passwords = read_users_file(path, setting)
    if len(passwords) != 1:
        raise errors.StartupError(f"{setting}: {path} must have one line NAME=PASSWORD, and has {len(passwords)}")
    return ":".join(*passwords.items())


def boot_id() -> str:
    """That of the machine; empty if it is unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def raise_open_files_limit() -> int:
    """Raise this process's soft limit on open files to the hard limit; returns the limit now in effect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    if soft >= raised:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        return soft
    return raised
