"""What must hold at every moment of a cluster's history, observed from outside: nothing here is the broker's own bookkeeping.

The numbers are those of the list in the design. ZooKeeper's transactions are inspected as they are committed, the replicas
of a machine after each turn of its broker, and only where something has moved since the turn before:

    1  in one epoch of a partition only one process ever leads; epochs in ZooKeeper never decrease
    2  epoch and offset identify a batch: no two replicas hold different bytes there
    3  what is visible is the same on all replicas
    4  visible <= replicated <= end, flushed <= end; what is visible stays visible while a process lives
    5  what a leader shows is flushed on every member of the stored in-sync set, and on every eligible one
    6  what is replicated is written by every member whose machine has kept its power; where acknowledgements wait for the
       flush only until some machine has lost it: it may lead again with less, and the others cut
    7  the in-sync set is a part of the replicas, and never empty
    8  only the leader changes the set, only the controller of the current epoch elects, and a broker that starts
       changes only its own entry; the last member, which cannot vouch for its log, may name others in its place
    9  a leader of an older epoch writes nothing once another has led for longer than half a session
    10 what was visible is not truncated
    11 a partition's state settles: it changes no more than a fixed number of times within a second
    12 where nothing but disks is full or hangs, a broker with such a disk is soon not in sync with others, and so leads nothing
       that they could lead; and no partition is ever without a leader
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logbus_broker.cluster import znodes
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.cluster.store import Check, Committed, Create, Operation, Set
from logbus_broker.log.partition import Partition

from tests.sim.world import SECOND, World
from tests.sim.zookeeper import SimZooKeeper
from tests.support.logs import headers_from

Key = tuple[bytes, int]  # topic id and partition

CHANGES_MAX = 25  # of a partition's state within a second: a broker that is restarted again and again makes about ten
DISK_PATIENCE = {"full": 2 * SECOND, "hung": 5 * SECOND}
STALE_WRITES_MAX = 1_600_000  # microseconds: half a session on a clock that runs a tenth too slow, and a turn


def _names_others(before: PartitionState, state: PartitionState) -> bool:
    """Whether the only member left, and its place is taken by who has everything, or else by the longest log."""
    successors = before.eligible or tuple(end.broker for end in before.withdrawn)
    is_left = len(before.isr) == 1 and before.isr[0] not in state.isr
    return is_left and state.leader < 0 and set(state.isr) <= set(successors)


class Broken(AssertionError):
    """An invariant does not hold."""


class Machine(Protocol):
    """A broker's machine, as far as it is inspected."""

    name: str
    broker_id: int
    starts: int  # number of its processes so far

    @property
    def disk_ailment(self) -> str:
        """One of DISK_PATIENCE; empty: its disk is well."""

    def replicas(self) -> Sequence[Partition]: ...


@dataclass(slots=True)
class _Replica:
    """What is known of one replica: of its process as of the end of its last turn, of its disk since the beginning."""

    process: int = -1
    end: int = 0
    flushed: int = 0
    start: int = 0
    visible: int = 0
    checked: int = 0  # batches below this offset have been compared
    led_epoch: int = -1
    has_lost_tail: bool = False  # its machine has lost power, or its disk, since it was last in sync
    is_new: bool = False  # the disk was replaced, and its broker has not joined the cluster since, so has not reported it yet
    partition: Partition | None = None
    looked_at: tuple[object, ...] = ()  # its offsets and state at the last inspection


@dataclass(slots=True)
class _Facts:
    """What is known of one partition of the cluster."""

    name: str
    state: PartitionState | None = None
    replicas: tuple[int, ...] = ()
    minimum: int = 1
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)  # by epoch: machine and process
    led_since: tuple[int, int] = (-1, 0)  # the newest epoch that has a leader, and since when
    batches: dict[tuple[int, int], tuple[int, int, str]] = field(default_factory=dict)  # (epoch, offset) -> CRC, size, who
    visible: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> epoch and CRC of a visible batch
    shown: int = 0  # the highest visible offset of a leader
    replicated: int = 0  # the highest replicated offset of a leader, less what a last member has lost with its power
    lowered: int = 0  # how often that was lowered: then all replicas are inspected again
    copies: dict[int, _Replica] = field(default_factory=dict)
    was_powerless: bool = False  # some machine has lost its power, or its disk
    changed_at: deque[int] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))


class Invariants:
    """See the module docstring. The first violation is kept in `broken`; the history ends there."""

    def __init__(self, world: World, zookeeper: SimZooKeeper, *, waits_for_flush: bool) -> None:
        """`waits_for_flush`: no acks=all is answered before it is flushed by every member."""
        self._waits_for_flush = waits_for_flush
        self.broken = ""
        self.on_election: Callable[[str, int], None] = lambda topic, index: None  # acks=1 may be lost from here on
        self.on_deposed: Callable[[], None] = lambda: (
            None
        )  # what a leader of an older epoch has acknowledged is lost from here on
        self.on_joined: Callable[[int, int], None] = lambda leader, member: None
        self.on_proposed: Callable[[int, int], None] = lambda leader, member: None  # on its way to ZooKeeper
        self.on_shown: Callable[[int], None] = lambda leader: None  # consumers see more than ever before
        self.has_only_disk_faults = False
        self._ailing: dict[tuple[int, Key], int] = {}  # since when a disk is full or hangs, and its broker is in sync with others
        self.elections = self.joins = self.cuts = 0
        self._world = world
        self._facts: dict[Key, _Facts] = {}
        self._by_path: dict[str, Key] = {}
        self._ids: dict[str, bytes] = {}
        zookeeper.observers.append(self._committed)
        zookeeper.on_sent = self._sent

    def _break(self, number: int, detail: str) -> None:
        if not self.broken:
            self.broken = f"invariant {number}: {detail}"
            self._world.note("INVARIANT", self.broken)

    def state(self, topic: str, index: int) -> PartitionState | None:
        """As stored in ZooKeeper."""
        key = self._by_path.get(znodes.state_path(topic, index))
        return None if key is None else self._facts[key].state

    def can_do_without(self, *brokers: int) -> bool:
        """Whether each partition has another member in sync whose disk has everything it had when it joined."""
        states = ((facts, facts.state) for facts in self._facts.values())
        return all(
            any(not self._copy(facts, other).has_lost_tail for other in state.isr if other not in brokers)
            for facts, state in states
            if state is not None
        )

    # What is committed

    def _sent(self, writer: str, operations: Sequence[Operation]) -> None:
        """A process sends a transaction. The member that it adds to an in-sync set is at its most vulnerable now."""
        for operation in operations:
            key = self._by_path.get(operation.path)
            state = None if key is None else self._facts[key].state
            if state is None or not isinstance(operation, Set) or state.leader != self._id_of(writer):
                continue
            for broker in znodes.decode_state(operation.data, state.version + 1).isr:
                if broker not in state.isr:
                    self._world.after(0, self.on_proposed, state.leader, broker)

    def _committed(self, writer: str, operations: Sequence[Operation], outcome: Committed) -> None:
        for operation, version in zip(operations, outcome.versions, strict=True):
            if isinstance(operation, Create | Set):
                self._written(writer, operations, operation, version)

    def _written(self, writer: str, operations: Sequence[Operation], operation: Create | Set, version: int) -> None:
        path = operation.path
        if not path.startswith(znodes.TOPICS + "/"):
            return
        parts = path[len(znodes.TOPICS) + 1 :].split("/")
        if len(parts) == 1:
            self._topic_written(parts[0], operation.data, version)
        elif parts[-1] == "state":
            key = self._ids[parts[0]], int(parts[2])
            facts = self._facts.setdefault(key, _Facts(name=f"{parts[0]}-{parts[2]}"))
            self._by_path[path] = key
            self._state_written(writer, operations, facts, znodes.decode_state(operation.data, version), key)

    def _topic_written(self, topic: str, data: bytes, version: int) -> None:
        node = znodes.decode_topic(topic, data, version)
        self._ids[topic] = node.topic_id.bytes
        for index, replicas in enumerate(node.replicas):
            facts = self._facts.setdefault((node.topic_id.bytes, index), _Facts(name=f"{topic}-{index}"))
            facts.replicas = tuple(replicas)

    def _state_written(
        self, writer: str, operations: Sequence[Operation], facts: _Facts, state: PartitionState, key: Key
    ) -> None:
        before, facts.state = facts.state, state
        self._world.note(
            "zookeeper",
            facts.name,
            f"by {writer}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr}",
            f"eligible {state.eligible} version {state.version}" + f" to {state.handover_to}" * (state.handover_to is not None),
        )
        if not state.isr or not set(state.isr) <= set(facts.replicas) or len(set(state.isr)) != len(state.isr):
            self._break(7, f"{facts.name}: the in-sync set is {state.isr} of {facts.replicas}")
        if before is None:
            return
        if len(facts.changed_at) == CHANGES_MAX and self._world.now - facts.changed_at[0] < SECOND:
            self._break(11, f"{facts.name}: {CHANGES_MAX + 1} states within a second, the last one {state}")
        facts.changed_at.append(self._world.now)
        if state.leader_epoch < before.leader_epoch:
            self._break(1, f"{facts.name}: the epoch falls from {before.leader_epoch} to {state.leader_epoch}")
        if state.leader != before.leader and state.leader_epoch == before.leader_epoch and state.leader >= 0:
            self._break(1, f"{facts.name}: {state.leader} leads in epoch {state.leader_epoch} as {before.leader} did")
        self._check_writer(writer, operations, facts, before, state)
        is_replaced = _names_others(before, state)
        added = [broker for broker in state.isr if broker not in before.isr and not is_replaced]
        for broker in added:
            self.joins += 1
            self._copy(facts, broker).has_lost_tail = False
            self._world.after(0, self.on_joined, state.leader, broker)
        if state.leader_epoch > before.leader_epoch:
            self.elections += 1
            is_given = self._id_of(writer) == before.leader and state.leader not in (before.leader, -1)
            if before.handover_to != state.leader and not is_given:
                self.on_election(facts.name.rpartition("-")[0], key[1])
        if self.has_only_disk_faults and state.leader < 0:
            self._break(12, f"{facts.name} has no leader: {state} after {before}")
        if state.is_recovering and not before.is_recovering:
            facts.visible.clear()
            facts.batches.clear()
            facts.shown = facts.replicated = 0
        self._check_members(facts, "the stored state is a new one")

    def _check_writer(
        self, writer: str, operations: Sequence[Operation], facts: _Facts, before: PartitionState, state: PartitionState
    ) -> None:
        broker = self._id_of(writer)
        checks = [operation for operation in operations if isinstance(operation, Check | Set)]
        as_controller = [one for one in checks if one.path == znodes.CONTROLLER_EPOCH]
        if as_controller or broker == before.leader:
            return
        gone = {one for one in (*before.isr, *before.eligible) if one not in (*state.isr, *state.eligible)}
        if _names_others(before, state) and before.isr == (broker,):
            return
        if gone - {broker} or set(state.isr) - set(before.isr) or state.leader not in (before.leader, -1, broker):
            self._break(8, f"{facts.name}: broker {broker} wrote {state} over {before}, which {before.leader} leads")

    @staticmethod
    def _id_of(writer: str) -> int:
        return int(writer.rpartition("-")[2])

    # What a machine holds

    def _copy(self, facts: _Facts, broker: int) -> _Replica:
        return facts.copies.setdefault(broker, _Replica())

    def lost_power(self, machine: Machine) -> None:
        """What it had not flushed may be gone, so others may rely on it only for what it has flushed."""
        for facts in self._facts.values():
            facts.was_powerless = True
            copy = facts.copies.get(machine.broker_id)
            if copy is not None:
                copy.has_lost_tail = True

    def lost_disk(self, machine: Machine) -> None:
        self.lost_power(machine)
        for facts in self._facts.values():
            facts.copies[machine.broker_id] = _Replica(has_lost_tail=True, is_new=True)

    def entered(self, machine: Machine) -> None:
        """It has declared what it cannot vouch for: as a member it has all that it had, unless it is the only one. If every
        acknowledgement waits for the flush it vouches for what is on its disk, and nothing else was promised."""
        for facts in self._facts.values():
            copy = facts.copies.get(machine.broker_id)
            if copy is None:
                continue
            copy.is_new = False
            if copy.has_lost_tail and not self._waits_for_flush:
                copy.has_lost_tail = False
                if facts.state is not None and facts.state.isr == (machine.broker_id,) and copy.partition is not None:
                    facts.replicated = min(facts.replicated, self._offsets_now(copy)[1])
                    facts.lowered += 1
            self._check_members(facts, f"{machine.name} has entered")

    def turn_ended(self, machine: Machine) -> None:
        """Inspect what has moved."""
        if self.broken:
            return
        if self.has_only_disk_faults:
            self._check_disk(machine)
        for partition in machine.replicas():
            log = partition.log
            if log.offline_reason:
                continue
            facts = self._facts.get((partition.topic_id.bytes, partition.index))
            if facts is None:
                continue
            copy = facts.copies.get(machine.broker_id) or self._copy(facts, machine.broker_id)
            if copy.process != machine.starts or copy.partition is not partition:
                self._process_begins(machine, copy, partition)
            if log.is_truncating:
                continue
            offsets = (log.end_offset, log.flushed_offset, log.log_start_offset, partition.visible_offset)
            place = (*offsets, partition.replicated, partition.is_led, partition.leader_epoch, facts.lowered)
            if place != copy.looked_at:
                self._look(machine, facts, copy, partition)
                copy.looked_at = place

    def _check_disk(self, machine: Machine) -> None:
        me, ailment = machine.broker_id, machine.disk_ailment
        for key, facts in self._facts.items():
            isr = () if facts.state is None or not facts.replicated else facts.state.isr
            if not ailment or me not in isr or len(isr) == 1:
                self._ailing.pop((me, key), None)
            elif self._world.now - self._ailing.setdefault((me, key), self._world.now) > DISK_PATIENCE[ailment]:
                self._break(12, f"{facts.name}: the disk of broker {me} is {ailment}, and the state is {facts.state}")

    def _process_begins(self, machine: Machine, copy: _Replica, partition: Partition) -> None:
        log = partition.log
        copy.process, copy.partition = machine.starts, partition
        copy.visible, copy.checked, copy.led_epoch, copy.looked_at = 0, log.log_start_offset, -1, ()
        copy.end, copy.flushed, copy.start = log.end_offset, log.flushed_offset, log.log_start_offset

    def _look(self, machine: Machine, facts: _Facts, copy: _Replica, partition: Partition) -> None:
        log = partition.log
        end, flushed, start, visible = log.end_offset, log.flushed_offset, log.log_start_offset, partition.visible_offset
        me = f"{facts.name} of {machine.name}"
        if not visible <= flushed <= end or (visible < copy.visible and start <= copy.start):
            self._break(4, f"{me}: visible {visible} after {copy.visible}, flushed {flushed}, end {end}")
        if end < copy.end:
            self.cuts += 1
            copy.checked = min(copy.checked, end)
            if end < copy.visible and start <= copy.start:
                self._break(10, f"{me}: cut at {end}, {copy.visible} was visible")
            self._check_members(facts, f"{me} is cut at {end}")
        if end != copy.end and partition.is_led:
            self._check_stale(machine, facts, partition, me)
        self._compare(facts, copy, partition, me)
        shown = copy.visible
        copy.end, copy.flushed, copy.start, copy.visible = end, flushed, start, visible
        if copy.led_epoch >= 0 and not partition.is_led:
            copy.led_epoch = -1
            self.on_deposed()
        if partition.is_led:
            self._look_at_lead(machine, facts, copy, partition, me)
        if visible > shown:
            self._show(facts, partition, shown, visible, me)

    def _look_at_lead(self, machine: Machine, facts: _Facts, copy: _Replica, partition: Partition, me: str) -> None:
        epoch = partition.leader_epoch
        if copy.led_epoch != epoch:
            copy.led_epoch = epoch
            leader = facts.leaders.setdefault(epoch, (machine.name, machine.starts))
            if leader != (machine.name, machine.starts):
                self._break(1, f"{me}: process {machine.starts} leads in epoch {epoch}, in which {leader} has led")
            if epoch > facts.led_since[0]:
                facts.led_since = epoch, self._world.now
        replicated = partition.replicated_offset
        if not partition.visible_offset <= replicated <= copy.end:
            self._break(4, f"{me}: visible {partition.visible_offset}, replicated {replicated}, end {copy.end}")
        if replicated > facts.replicated or partition.visible_offset > facts.shown:
            facts.replicated = max(facts.replicated, replicated)
            if partition.visible_offset > facts.shown:
                self._world.after(0, self.on_shown, machine.broker_id)
            facts.shown = max(facts.shown, partition.visible_offset)
            self._check_members(facts, f"{me} leads in epoch {epoch}")

    def _check_stale(self, machine: Machine, facts: _Facts, partition: Partition, me: str) -> None:
        newest, since = facts.led_since
        if partition.leader_epoch < newest and self._world.now - since > STALE_WRITES_MAX:
            self._break(
                9,
                f"{me} writes in epoch {partition.leader_epoch}, {(self._world.now - since) / SECOND:.3f} s into epoch {newest}",
            )

    def _check_members(self, facts: _Facts, when: str) -> None:
        """Every electable replica has all that was exposed or acknowledged."""
        state = facts.state
        if state is None or self.broken:
            return
        for broker in (*state.isr, *state.eligible):
            copy = facts.copies.get(broker)
            if copy is None:
                if facts.shown or facts.replicated:
                    self._break(5, f"{facts.name}: broker {broker} of {state} has nothing; {when}")
                continue
            if copy.is_new or state.is_lost or (copy.partition is not None and copy.partition.log.offline_reason):
                continue
            if copy.partition is None:
                continue  # the previous process has ended, and this one has not opened its log yet
            flushed, end = self._offsets_now(copy)
            if flushed < facts.shown:
                self._break(
                    5, f"{facts.name}: {facts.shown} is visible, broker {broker} of {state} has flushed {flushed}; {when}"
                )
            if self._waits_for_flush and facts.was_powerless:
                continue
            if not copy.has_lost_tail and end < facts.replicated:
                self._break(6, f"{facts.name}: {facts.replicated} is replicated, broker {broker} of {state} has {end}; {when}")

    def _offsets_now(self, copy: _Replica) -> tuple[int, int]:
        partition = copy.partition
        assert partition is not None, "it was looked at"
        return partition.log.flushed_offset, partition.log.end_offset

    def _compare(self, facts: _Facts, copy: _Replica, partition: Partition, me: str) -> None:
        log = partition.log
        if copy.checked < log.log_start_offset:
            copy.checked = log.log_start_offset
        if copy.checked >= log.end_offset:
            return
        for header in headers_from(log, copy.checked):
            if header.base_offset < copy.checked:
                continue
            place = header.leader_epoch, header.base_offset
            mine = header.crc, header.size, me
            other = facts.batches.setdefault(place, mine)
            if other[:2] != mine[:2]:
                self._break(2, f"{me}: the batch at {place[1]} of epoch {place[0]} is another at {other[2]}")
            copy.checked = header.next_offset

    def _show(self, facts: _Facts, partition: Partition, shown: int, visible: int, me: str) -> None:
        """What is visible on this replica is what was visible on others. What lies below `shown` was compared before."""
        for header in headers_from(partition.log, max(partition.log.log_start_offset, shown)):
            if header.base_offset >= visible:
                break
            mine = header.leader_epoch, header.crc
            if facts.visible.setdefault(header.base_offset, mine) != mine:
                self._break(3, f"{me}: at {header.base_offset} {mine} is visible, and {facts.visible[header.base_offset]} was")
