"""A broker of a cluster: a simulated machine whose process is also connected to ZooKeeper and to the other brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from logbus_broker.cluster_engine import ClusterEnvironment
from logbus_broker.engine import Engine
from logbus_broker.errors import BrokerError
from logbus_broker.filesystem import offset_name, offsets_in
from logbus_broker.log.checkpoint import RECOVERY_POINTS, read_checkpoint
from logbus_broker.log.log_directory import METADATA_SEEN
from logbus_broker.log.partition import Partition
from logbus_broker.log.segment import LOG, scan_headers

from tests.sim.invariants import Invariants
from tests.sim.network import Network, SimSocket
from tests.sim.nodes import DATA, PORT, RETRY_START, SimNode, SimServer
from tests.sim.peers import SimPeers
from tests.sim.world import SECOND, World
from tests.sim.zookeeper import SimZooKeeper
from tests.sim.zookeeper_store import SimStore

SESSION_IDS = 1_000  # of followers' sessions, for each process of a broker


class ClusterServer(SimServer):
    """The kernel accepts connections while the broker joins its cluster; they are answered once it is a member."""

    def __init__(self, node: SimNode, engine: Engine) -> None:
        super().__init__(node, engine, on_closed=engine.disconnected)
        self._waiting: list[SimSocket] | None = []

    def accept(self, sock: SimSocket) -> None:
        if self._waiting is None:
            super().accept(sock)
        else:
            self._waiting.append(sock)

    def open(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for sock in waiting:
            super().accept(sock)


class ClusterNode(SimNode):
    """A machine with a broker of the cluster on it."""

    def __init__(
        self, world: World, network: Network, broker_id: int, *, zookeeper: SimZooKeeper, invariants: Invariants, **settings: Any
    ) -> None:
        super().__init__(world, network, broker_id, zookeeper_connect="zookeeper:2181", **settings)
        self.broker_id = broker_id
        self.store: SimStore | None = None
        self._zookeeper = zookeeper
        self._invariants = invariants
        self._is_cut_off = False
        self._boots = 1
        self._is_to_start_again = False

    # The process

    def _make_engine(self) -> Engine:
        self.store = store = _Store(self._zookeeper, self.name, self)
        self._zookeeper.add(store)
        if self._is_cut_off:
            store.cut()
        environment = ClusterEnvironment(
            store=store,
            connect=lambda events: SimPeers(self.name, self.network, events=events, clock=self.clock, wake=self.wake),
            boot_id=f"boot {self._boots}",
            session_ids=count(self.starts * SESSION_IDS + 1),
            on_fenced=self._fenced,
            answers=lambda address: False,  # addresses never change here
        )
        return Engine(
            self.config,
            clock=self.clock,
            filesystem=self.disk,
            thread_pool=self._new_thread_pool(),
            ports={"PLAINTEXT": PORT},
            new_id=self.new_id,
            environment=environment,
            on_ready=self._entered,
        )

    def _make_server(self, engine: Engine) -> SimServer:
        return ClusterServer(self, engine)

    def _entered(self, error: BrokerError | None) -> None:
        if error is not None:
            self._fenced(error)
            return
        assert isinstance(self._server, ClusterServer)
        self.world.note(self.name, "enters", *self._ends(self.engine))
        self._invariants.entered(self)
        self._server.open()
        self.wake()

    def _fenced(self, error: BrokerError) -> None:
        """The process exits; a supervisor restarts it."""
        self.world.note(self.name, "ends by itself", str(error))
        process = self.starts
        self.world.after(0, self._end_fenced, process)

    def _end_fenced(self, process: int) -> None:
        if self.engine is not None and self.starts == process:
            self.kill()
            self.world.after(RETRY_START, self.start)

    def _turn(self) -> None:
        super()._turn()
        if self.engine is not None:
            # The harness reads here, not the process, so the process does not end inside these disk calls.
            left, self.disk.calls_left = self.disk.calls_left, -1
            self._invariants.turn_ended(self)
            self.disk.calls_left = left

    # Seen from outside

    def replicas(self) -> Sequence[Partition]:
        return () if self.engine is None else tuple(self.engine.partitions)

    @property
    def is_serving(self) -> bool:
        return self.engine is not None and self.engine.is_ready

    @property
    def is_controller(self) -> bool:
        return self.is_serving and self.engine.cluster.controller.mandate is not None  # type: ignore[union-attr]

    @property
    def disk_ailment(self) -> str:
        return "hung" if self.has_hung_disk else "full" if self.disk.room == 0 else ""

    def held(self, topic: str, index: int) -> Partition | None:
        return None if self.engine is None else self.engine.partitions.held(topic, index)

    # What happens to it

    def set_zookeeper(self, zookeeper: SimZooKeeper) -> None:
        """Put another zookeeper.connect into its configuration; the next process reads it."""
        self._zookeeper = zookeeper

    def _forget(self) -> None:
        if self.store is not None:
            self.store.kill()
            self.store = None
        super()._forget()

    def pause(self) -> None:
        was_paused = self.is_paused
        super().pause()
        if self.is_paused and not was_paused and self.store is not None:
            self.store.pause()

    def resume(self) -> None:
        was_paused = self.is_paused
        super().resume()
        if was_paused and self.store is not None:
            self.store.resume()

    def _stop(self) -> None:
        """SIGTERM: the broker first leaves the cluster, which takes a while."""
        assert self.engine is not None, "is running"
        process = self.starts
        self.engine.leave(lambda: self.world.after(0, self._left, process))
        self.wake()

    def restart_if_offline(self) -> None:
        """Stopping takes a while, so the start comes later."""
        self._is_to_start_again = self.is_up
        super().restart_if_offline()

    def _left(self, process: int) -> None:
        if self.engine is not None and self.starts == process:
            self.guard(self._end_in_good_order)
            if self._is_to_start_again:
                self._is_to_start_again = False
                self.start()

    def _end_in_good_order(self) -> None:
        store = self.store
        super()._stop()
        if store is not None:
            self._zookeeper.expire(store.client_session_id)  # what closing the store does, once everything is on the disk

    def cut_power(self) -> None:
        super().cut_power()
        self.reboot()

    def reboot(self) -> None:
        """The machine starts again: what was not flushed cannot be relied on."""
        self._boots += 1

    def seen_on_disk(self) -> int:
        """The newest entry of the metadata log that its disk knows of; -1 if none."""
        try:
            return int(json.loads(self.disk.read_bytes(DATA / METADATA_SEEN))["position"])
        except FileNotFoundError:
            return -1

    def old_batches(self, topic: str, index: int) -> list[tuple[Path, int, int]]:
        """Those in segments that a start does not read again: file, position and size."""
        directory = DATA / f"{topic}-{index}"
        if not self.disk.is_directory(directory):
            return []
        recovery_point = read_checkpoint(self.disk, DATA / RECOVERY_POINTS).get((topic, index), 0)
        batches = []
        for base, following in pairwise(offsets_in(self.disk.list_names(directory), LOG)):
            if following <= recovery_point:
                path = directory / offset_name(base, LOG)
                file = self.disk.open_for_reading(path)
                headers = scan_headers(self.disk, file, 0, self.disk.size(file))
                batches += [(path, position, header.size) for position, header in headers]
        return batches

    def replace_disk(self) -> None:
        self.disk.replace()
        self.make_data_directory()

    def cut_zookeeper_off(self) -> None:
        self._is_cut_off = True
        if self.store is not None:
            self.store.cut()

    def heal_zookeeper(self) -> None:
        self._is_cut_off = False
        if self.store is not None:
            self.store.heal()


class _Store(SimStore):
    """Its deadlines are read from the machine's clock, which may run at a different rate than ZooKeeper's."""

    def __init__(self, zookeeper: SimZooKeeper, name: str, node: ClusterNode) -> None:
        super().__init__(zookeeper, name, node.wake, node.config.zookeeper_session_ms / 1000)
        self._node = node

    def next_deadline(self) -> float:
        return self._node.clock.monotonic() + super().next_deadline() - self._node.world.now / SECOND
