"""Mutated requests against the whole broker below its sockets: framing, codecs, handlers, log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from logbus_broker.errors import ProtocolError
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection
from logbus_broker.settings import BrokerConfig

from tests.support.engine import Harness
from tests.support.mutations import mutated_frame
from tests.support.sockets import ScriptedSocket

FRAMES_PER_TURN = 20


class UnsyncedFileSystem(FileSystem):
    """Real files without waiting for the disk: durability is not tested here."""

    def sync_data(self, file: OpenFile) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class Fuzzer:
    """Runs cases of one seed against one engine. A case may be answered, or end its connection; anything else is raised, with the
    seed and number that reproduce it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.outcomes: Counter[str] = Counter()
        # Low limits: topics and producers created by mutated requests soon reach them.
        self.harness = Harness(directory, filesystem=UnsyncedFileSystem(), partitions_max=64, producer_ids_max=1000)
        self.harness.create("fuzzed")
        self.network = NetworkCounters()
        self._connection: Connection | None = None
        self._sock = ScriptedSocket()

    def run(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            try:
                self._feed(mutated_frame(self.seed, number))
                if number % FRAMES_PER_TURN == 0:
                    self._turn()
            except Exception as error:
                raise AssertionError(f"case {number} of seed {self.seed}: {error!r}") from error

    def _feed(self, frame: bytes) -> None:
        connection = self._connection or self._connect()
        self._sock.incoming += frame
        try:
            connection.receive(self.harness.clock.monotonic())
        except ProtocolError:
            self._close("refused")
            return
        if connection.closing or connection.frame_since is not None or self._sock.incoming:
            self._close("cut off")
        else:
            self.outcomes["handled"] += 1

    def _turn(self) -> None:
        self.harness.clock.advance_ms(50)
        self.harness.settle()
        if self._connection is not None:
            self._connection.output.close()  # as if the peer had read it

    def _connect(self) -> Connection:
        self._sock = ScriptedSocket()
        self._connection = Connection(
            self._sock,  # type: ignore[arg-type]
            "127.0.0.1:1",
            dispatch=self.harness.engine.dispatch,
            config=BrokerConfig(),
            now=self.harness.clock.monotonic(),
            on_ready=lambda connection: None,
            network=self.network,
        )
        return self._connection

    def _close(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self.harness.turn()

    def close(self) -> None:
        self._close("end")
        assert self.network.held_bytes == 0, "closed connections give back everything"
        self.harness.close()
