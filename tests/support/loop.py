"""The broker's loop without sockets, epoll and real time: a test decides what is ready in each turn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logbus_broker.api.handler import Parts, Pending
from logbus_broker.api.produce_fast_path import ProduceFastPath
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection
from logbus_broker.network.gate import Gate
from logbus_broker.network.poller import READ, RESET, Poller
from logbus_broker.network.server import Server
from logbus_broker.network.throttling import Throttle
from logbus_broker.protocol.framing import Request
from logbus_broker.setting_parsers import INT32_MAX
from logbus_broker.settings import BrokerConfig

from tests.support.manual_clock import ManualClock
from tests.support.sockets import ScriptedListener, ScriptedSocket

WAKEUP, LISTENING = 0, 1
Events = Sequence[tuple[int, int]]


class Idle(BaseException):
    """The loop waits, and the test says what comes next."""


class ScriptedPoller(Poller[Connection]):
    """Records the events asked for and the last timeout; `fails` names the methods that raise. `ready` is what one wait returns."""

    def __init__(self, clock: ManualClock) -> None:
        self.owners = {}
        self.epoll = self  # type: ignore[assignment]
        self.asked: dict[int, int] = {}
        self.fails: dict[str, Exception] = {}
        self.ready: Events | None = None
        self.rested: list[float] = []
        self.timeout = 0.0
        self._clock = clock

    def poll(self, timeout: float) -> Events:
        self.timeout = timeout
        if self.ready is None:
            raise Idle
        ready, self.ready = self.ready, None
        return ready

    def _check(self, method: str) -> None:
        if method in self.fails:
            raise self.fails[method]

    def register(self, descriptor: int, events: int, owner: Any) -> None:
        self._check("register")
        self.owners[descriptor], self.asked[descriptor] = owner, events

    def modify(self, descriptor: int, events: int) -> None:
        self._check("modify")
        assert descriptor in self.asked
        self.asked[descriptor] = events

    def unregister(self, descriptor: int) -> None:
        self.owners.pop(descriptor, None)
        self.asked.pop(descriptor, None)

    def rest(self, seconds: float) -> None:
        self.rested.append(seconds)
        self._clock.advance_ms(round(seconds * 1000))

    def close(self) -> None: ...


class ScriptedTurn:
    """What the loop calls between reading and sending. `fails` names what raises."""

    def __init__(self) -> None:
        self.fails: dict[str, Exception] = {}

    def _check(self, method: str) -> None:
        if method in self.fails:
            raise self.fails[method]

    def drain_thread_pool(self) -> None:
        self._check("drain_thread_pool")

    def end_turn(self) -> None:
        self._check("end_turn")
        self.answer_staged()

    def answer_staged(self) -> None:
        self._check("answer_staged")

    def next_deadline(self) -> float:
        self._check("next_deadline")
        return math.inf


class ScriptedWakeup:
    def fileno(self) -> int:
        return WAKEUP

    def wake(self) -> None: ...

    def drain(self) -> None: ...


class Loop:
    """A server and its surroundings."""

    def __init__(
        self,
        dispatch: Callable[[Request], Parts | Pending],
        *,
        fast_path: ProduceFastPath | None = None,
        clock: ManualClock | None = None,
        steps: Any = None,
        throttle: Callable[[ManualClock], Throttle] | None = None,
        gates: Mapping[str, Gate] | None = None,
        connect: Mapping[str, Callable[..., Connection]] | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.poller = ScriptedPoller(self.clock)
        self.listener = ScriptedListener()
        self.steps = steps or ScriptedTurn()
        self.network = NetworkCounters()
        self.defects: list[str] = []
        self.swept = 0
        self.per_ip_max = INT32_MAX
        self.fails_in_sweep: Exception | None = None
        self.server = Server(
            {"PLAINTEXT": self.listener},  # type: ignore[dict-item]
            dispatch=dispatch,
            turn=self.steps,
            config=BrokerConfig(**settings),
            per_ip_max=lambda: self.per_ip_max,
            clock=self.clock,
            wakeup=ScriptedWakeup(),  # type: ignore[arg-type]
            network=self.network,
            descriptors_end=1 << 20,
            each_sweep=self._sweep,
            defect=lambda what, error: self.defects.append(f"{what}: {error}"),
            poller=self.poller,
            fast_path=fast_path,
            throttle=None if throttle is None else throttle(self.clock),
            gates=gates or {},
            connect=connect or {},
        )

    def _sweep(self) -> None:
        self.swept += 1
        if self.fails_in_sweep is not None:
            raise self.fails_in_sweep

    def knock(self, host: str = "127.0.0.1", sock: ScriptedSocket | None = None) -> ScriptedSocket:
        """A client connects before the next turn in which the listening socket is ready."""
        sock = sock or ScriptedSocket()
        self.listener.knocking.append((sock, host))
        return sock

    def connect(self, host: str = "127.0.0.1", sock: ScriptedSocket | None = None) -> ScriptedSocket:
        """A turn in which a client connects."""
        sock = self.knock(host, sock)
        self.turn([(LISTENING, READ)])
        return sock

    def send(self, data: bytes, *socks: ScriptedSocket) -> None:
        """A turn in which this arrives from each of these clients."""
        for sock in socks:
            sock.incoming += data
        self.turn([event for sock in socks for event in self.ready(sock)])

    def turn(self, ready: Events = ()) -> None:
        """One turn, until the loop waits again."""
        self.poller.ready = ready
        with contextlib.suppress(Idle):
            self.server.run()

    def stop(self) -> None:
        self.server.stopping = True
        self.server.run()

    def ready(self, sock: ScriptedSocket, events: int = READ) -> Events:
        """What epoll would report for a socket in this state: the events asked for, and always a reset."""
        told = events & ((self.asked(sock) or 0) | RESET)
        return [(sock.fileno(), told)] if told else []

    def asked(self, sock: ScriptedSocket) -> int | None:
        """The events that the loop waits for on the socket; None if it is no longer watched."""
        return self.poller.asked.get(sock.fileno())
