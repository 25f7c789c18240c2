"""A broker on a simulated machine: its engine and its connections are real; the machine is not.

The machine has a disk, clocks and a place in the network; it outlives the processes on it. A process can be killed, also inside
a disk call, stopped and continued (it then finds what has arrived in its sockets), lose its machine's power, or be shut down
cleanly. `SimServer` does what `logbus_broker.network.Server` does, without epoll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from logbus_broker.engine import Engine
from logbus_broker.errors import BrokerError
from logbus_broker.filesystem import FileSlice
from logbus_broker.log.flusher import FlushTicket
from logbus_broker.network.buffers import Output, ShortFile
from logbus_broker.network.connection import Connection
from logbus_broker.protocol.framing import Origin
from logbus_broker.setting_parsers import Listener
from logbus_broker.settings import BrokerConfig, LogConfig

from tests.sim.disk import SimDisk, Stopped
from tests.sim.network import Network, SimSocket
from tests.sim.world import MS, NodeClock, World

PORT = 9092
DATA = Path("/disk/data")
ROUNDS_PER_TURN_MAX = 4
TURN = 30  # the minimum duration of a turn, in microseconds
RETRY_START = 500 * MS  # a supervisor restarts what failed to start

Outcome = Callable[[Any, BaseException | None], None]


class SimOutput(Output):
    """File slices are read from the simulated disk when they are sent, as pread and sendfile would."""

    __slots__ = ("_disk",)

    def __init__(self, disk: SimDisk) -> None:
        super().__init__()
        self._disk = disk

    def _pread(self, part: FileSlice) -> bytes:
        assert part._file is not None, "not released"
        return self._disk.read_at(part._file, part.length, part.position)

    def _send_slice(self, sock: Any, head: FileSlice, budget: int) -> int:
        assert head._file is not None, "not released"
        data = self._disk.read_at(head._file, min(head.length, budget), head.position)
        if not data:
            raise ShortFile(f"{head.length} bytes missing")
        sent: int = sock.send(data)
        if sent == head.length:
            self._parts.popleft()
            head.release()
        else:
            head.position += sent
            head.length -= sent
        return sent


class SimThreadPool:
    """Jobs outside the loop: the world decides when they run, and their outcomes wait for the next turn. A stopped process
    runs none; the kernel's own flushes continue."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._chance = node.world.chance(f"{node.name}/helpers")
        self._outcomes: list[tuple[Outcome, Any, BaseException | None]] = []
        self._running: dict[int, tuple[Callable[[], Any], Outcome]] = {}
        self._made = 0
        self._files_free_at = 0

    def submit(self, job: Callable[[], Any], outcome: Outcome) -> None:
        self._begin(job, outcome, self._chance.randint(100, 3 * MS))

    def store(self, job: Callable[[], Any], outcome: Outcome) -> None:
        now = self._node.world.now
        self._files_free_at = max(now, self._files_free_at) + self._chance.randint(MS, 6 * MS) + self._node.sync_delay
        self._begin(job, outcome, self._files_free_at - now)

    def flush(self, ticket: FlushTicket, outcome: Outcome) -> None:
        disk = self._node.disk
        began_at = disk.writes

        def run() -> None:
            with disk.syncing(began_at):
                ticket.run()

        delay = self._chance.randint(500, 5 * MS) + self._node.sync_delay
        self._begin(run, outcome, delay, is_kernels=ticket.only_file is not None)

    def run_together(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        return [job() for job in jobs]

    def _begin(self, job: Callable[[], Any], outcome: Outcome, delay: int, *, is_kernels: bool = False) -> None:
        self._made += 1
        self._running[self._made] = job, outcome
        self._node.world.after(delay, self._ended, self._made, is_kernels)

    def _ended(self, number: int, is_kernels: bool) -> None:
        if number not in self._running or self._node.thread_pool is not self:
            return  # the process is gone
        if self._node.has_hung_disk:
            self._node.when_answering.append(lambda: self._ended(number, is_kernels))
            return
        if self._node.is_paused and not is_kernels:
            self._node.when_continued.append(lambda: self._ended(number, is_kernels))
            return
        self._node.guard(lambda: self._run(number))
        self._node.wake()

    def _run(self, number: int) -> None:
        job, outcome = self._running.pop(number)
        result, error = None, None
        try:
            result = job()
        except Exception as caught:
            error = caught
        self._outcomes.append((outcome, result, error))

    def drain(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        for outcome, result, error in outcomes:
            outcome(result, error)

    def close(self) -> None:
        while self._running or self._outcomes:
            for number in list(self._running):
                self._run(number)
            self.drain()


class SimServer:
    """The connections of one process."""

    def __init__(self, node: SimNode, engine: Engine, *, on_closed: Callable[[Origin], None] = lambda origin: None) -> None:
        self._node = node
        self._engine = engine
        self._on_closed = on_closed
        self._connections: dict[SimSocket, Connection] = {}
        self._readable: dict[SimSocket, None] = {}
        self._ready: dict[Connection, None] = {}

    def accept(self, sock: SimSocket) -> None:
        connection = Connection(
            sock,  # type: ignore[arg-type]
            f"{sock.peer_host}:1",
            dispatch=self._engine.dispatch,
            config=self._engine.config,
            now=self._node.clock.monotonic(),
            on_ready=self._note_ready,
            network=self._engine.counters.network,
            settle=self._engine.answer_staged,
            monotonic=self._node.clock.monotonic,
            listener="PLAINTEXT",
            fast_path=None if self._engine.fast_path is None else self._engine.fast_path.connect(),
        )
        connection.output = SimOutput(self._node.disk)
        self._connections[sock] = connection
        sock.owner = self
        if sock.inbox:
            self.readable(sock)

    def _note_ready(self, connection: Connection) -> None:
        self._ready[connection] = None

    def readable(self, sock: SimSocket) -> None:
        self._readable[sock] = None
        self._node.wake()

    def writable(self, sock: SimSocket) -> None:
        connection = self._connections.get(sock)
        if connection is not None:
            self._note_ready(connection)
            self._node.wake()

    def turn(self) -> bool:
        """One turn of the loop; returns whether the next one should follow at once."""
        now = self._node.clock.monotonic()
        readable, self._readable = self._readable, {}
        for sock in readable:
            connection = self._connections.get(sock)
            if connection is not None:
                self._read(sock, connection, now)
        self._engine.drain_thread_pool()
        self._engine.end_turn()
        for _ in range(ROUNDS_PER_TURN_MAX):
            if not self._ready:
                break
            ready, self._ready = self._ready, {}
            for connection in ready:
                self._finish(connection, now)
            self._engine.answer_staged()
        return bool(self._ready) or bool(self._readable)

    def _read(self, sock: SimSocket, connection: Connection, now: float) -> None:
        if connection.wants_to_read:
            self._guarded(connection, connection.receive, now)
        elif sock.has_ended or sock.was_reset:
            connection.closing = "peer"
        self._note_ready(connection)

    def _finish(self, connection: Connection, now: float) -> None:
        sock: Any = connection.sock
        if sock not in self._connections:
            return
        if connection.output:
            self._guarded(connection, connection.send, now)
        if not connection.closing and connection.has_unread_requests and connection.wants_to_read:
            self._guarded(connection, connection.process, now)
        if connection.closing:
            del self._connections[sock]
            connection.close()
            self._on_closed(connection.origin)
        elif (sock.inbox or sock.has_ended or sock.was_reset) and (connection.wants_to_read or not sock.inbox):
            self._readable[sock] = None

    def _guarded(self, connection: Connection, action: Callable[[float], None], now: float) -> None:
        try:
            action(now)
        except (OSError, ShortFile, BrokerError) as error:
            connection.closing = type(error).__name__

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class SimNode:
    """A machine with a broker on it."""

    def __init__(self, world: World, network: Network, broker_id: int, *, log: LogConfig | None = None, **settings: Any) -> None:
        self.world = world
        self.name = f"broker-{broker_id}"
        self.network = network
        self.clock = NodeClock(world)
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.make_data_directory()
        self.sync_delay = 0  # how much longer than usual a flush takes
        self.engine: Engine | None = None
        self.thread_pool: SimThreadPool | None = None
        self.has_hung_disk = False  # no flush ends
        self.when_answering: list[Callable[[], None]] = []
        self.is_paused = False
        self.when_continued: list[Callable[[], None]] = []
        self.on_death: Callable[[], None] | None = None  # what happens to the machine if the process ends inside a disk call
        self.starts = 0
        self._took_fast_path = 0
        self.config = BrokerConfig(
            broker_id=broker_id,
            log_dirs=DATA,
            listeners=(Listener(host=self.name, port=PORT),),
            log=log or LogConfig(),
            **settings,
        )
        self._server: SimServer | None = None
        self._wakes_at = -1
        self._busy_until = 0
        self._has_power = True

    def make_data_directory(self) -> None:
        """As an operator does, long before the broker is started."""
        self.disk.make_directory(DATA)
        self.disk.sync_directory(DATA.parent)

    # The process

    @property
    def is_up(self) -> bool:
        return self.engine is not None

    def start(self) -> None:
        """Start the broker if none runs; retry later if it cannot start."""
        if self.engine is not None:
            return
        if not self._has_power:
            self._has_power = True
            self.network.power_on(self.name)
        self.is_paused = False
        self.starts += 1
        self.guard(self._start)
        if self.engine is None:
            self.disk.release()
            self.world.after(RETRY_START, self.start)

    def _start(self) -> None:
        self.thread_pool = SimThreadPool(self)
        try:
            engine = self._make_engine()
        except (BrokerError, OSError) as error:
            self.world.note(self.name, "cannot start", type(error).__name__)
            return
        self.engine = engine
        self._server = self._make_server(engine)
        self.network.listen(self.name, self._server.accept)
        self.world.note(self.name, "starts", *(self._ends(engine)))
        self.wake()

    def _make_server(self, engine: Engine) -> SimServer:
        return SimServer(self, engine)

    def _new_thread_pool(self) -> SimThreadPool:
        assert self.thread_pool is not None, "before the engine"
        return self.thread_pool

    def _make_engine(self) -> Engine:
        return Engine(
            self.config,
            clock=self.clock,
            filesystem=self.disk,
            thread_pool=self._new_thread_pool(),
            ports={"PLAINTEXT": PORT},
            new_id=self.new_id,
        )

    def _ends(self, engine: Engine | None) -> list[str]:
        if engine is None:
            return []
        return [f"{one.name}:{one.leader_epoch}:{one.log_start_offset}-{one.end_offset}" for one in engine.partitions]

    def new_id(self) -> UUID:
        return UUID(int=self.world.chance("ids").getrandbits(128), version=4)

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action in which the process may end inside a disk call."""
        try:
            action()
        except Stopped:
            dies, self.on_death = self.on_death, None
            assert dies is not None, "somebody has said what happens then"
            dies()

    def wake(self) -> None:
        """There is work: a turn runs as soon as the loop is free."""
        self._plan(TURN)

    def _plan(self, delay: int) -> None:
        at = max(self.world.now + delay, self._busy_until)
        if self._wakes_at < 0 or at < self._wakes_at:
            self._wakes_at = at
            self.world.after(at - self.world.now, self._woken, at)

    def _woken(self, at: int) -> None:
        if at != self._wakes_at:
            return
        self._wakes_at = -1
        if self.engine is not None and not self.is_paused:
            self.guard(self._turn)

    def _turn(self) -> None:
        engine, server = self.engine, self._server
        assert engine is not None, "is running"
        assert server is not None, "is running"
        self._busy_until = self.world.now + TURN
        if server.turn():
            self.wake()
        else:
            self._plan(max(self.clock.until(min(engine.next_deadline(), self.clock.monotonic() + 3600)), TURN))

    # What happens to it

    def kill(self) -> None:
        """SIGKILL: what was written stays in the page cache."""
        if self.engine is not None:
            self.world.note(self.name, "killed")
        self._end_process()

    def restart(self) -> None:
        self.kill()
        self.start()

    def _end_process(self) -> None:
        self._forget()
        self.network.process_ended(self.name)
        self.disk.release()

    @property
    def took_fast_path(self) -> int:
        """How many produce requests took the fast path, over all processes so far."""
        return self._took_fast_path + (0 if self.engine is None else self.engine.counters.fast_path)

    def _forget(self) -> None:
        self._took_fast_path = self.took_fast_path
        self.engine = self._server = self.thread_pool = None
        self._wakes_at = -1
        self.on_death = None
        self.when_continued, self.when_answering = [], []
        self.is_paused = False

    def cut_power(self) -> None:
        """The machine is off, and its disk has what had reached it."""
        chance = self.world.chance(f"{self.name}/power")
        kind = chance.randint(0, 2)
        keeps = {0: lambda low, high: low, 1: lambda low, high: high}.get(kind, chance.randint)
        self.world.note(self.name, "loses power")
        self._forget()
        self._has_power = False
        self.network.power_off(self.name)
        self.disk.power_cut(keeps)

    def die_within(self, calls: int, then: Callable[[], None]) -> None:
        """The process ends in the middle of its work: inside the disk call after this many. `then` kills it, or worse."""
        self.disk.calls_left = calls
        self.on_death = then

    def pause(self) -> None:
        """SIGSTOP."""
        if self.engine is not None and not self.is_paused:
            self.world.note(self.name, "stopped")
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_paused:
            self.world.note(self.name, "continued")
            self.is_paused = False
            waiting, self.when_continued = self.when_continued, []
            for action in waiting:
                action()
            self.wake()

    def hang_disk(self) -> None:
        """It takes writes, as long as the page cache does, and no flush ends."""
        self.has_hung_disk = True

    def answer_again(self) -> None:
        """Whatever waits for the disk ends."""
        self.has_hung_disk = False
        waiting, self.when_answering = self.when_answering, []
        for action in waiting:
            action()

    def stop(self) -> None:
        """SIGTERM, a clean shutdown."""
        if self.engine is None or self.is_paused:
            return
        self.world.note(self.name, "stops")
        self.guard(self._stop)

    def _stop(self) -> None:
        assert self.engine is not None, "is running"
        assert self._server is not None, "is running"
        self._server.close()
        self.engine.close()
        self._end_process()

    def restart_if_offline(self) -> None:
        """What an operator does after the disk has refused a flush."""
        if self.engine is not None and not self.is_paused and any(one.log.offline_reason for one in self.engine.partitions):
            self.stop()
            self.start()

    def heal(self) -> None:
        """Whatever was wrong with the machine is repaired."""
        self.disk.room, self.disk.failing_syncs, self.disk.calls_left, self.on_death = None, 0, -1, None
        self.sync_delay = 0
        self.answer_again()
        self.resume()
        self.restart_if_offline()
        self.start()
