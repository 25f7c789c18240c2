"""Faults of a cluster: whatever may happen to each machine, to the links between them, and to ZooKeeper.

Faults that matter are aimed: at the leader, at the controller, at the moment after a join, an election or an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from logbus_broker.cluster import metadata_log

from tests.sim.checker import DAMAGE
from tests.sim.cluster_nodes import ClusterNode
from tests.sim.disk import Directory
from tests.sim.faults import KINDS, Fault, Faults
from tests.sim.histories import History
from tests.sim.invariants import Invariants
from tests.sim.network import Network
from tests.sim.nodes import SimNode
from tests.sim.world import MS, SECOND, World
from tests.sim.znode_tree import Change
from tests.sim.zookeeper import SimZooKeeper
from tests.sim.zookeeper_store import SimStore

LEADER, CONTROLLER, FOLLOWER = -1, -2, -3  # in place of a machine's number: whichever has the role at that time

CLUSTER_KINDS: dict[str, int] = {
    **KINDS,
    "kill": 6,
    "pause": 6,
    "stop": 4,
    "isolate": 8,
    "reset peers": 3,
    "kill at join": 4,
    "kill at election": 4,
    "kill at answer": 4,
    "kill at proposal": 2,
    "kill at exposure": 2,
    "cut at proposal": 2,
    "cut at join": 2,
    "slow restart": 2,
    "kill all": 1,
    "power cut all": 2,
    "replace disk": 2,
    "older directory": 2,
    "damaged byte": 2,
    "restart storm": 2,
    "stop zookeeper": 2,
    "elect zookeeper": 2,
    "freeze zookeeper": 1,
    "older zookeeper": 2,
    "lose answers": 3,
    "lose one answer": 4,
    "expire session": 4,
    "drop connection": 2,
}

MOMENTS = ("join", "election", "answer", "proposal", "exposure")
PEERS, ZOOKEEPER, CLIENTS, ONE_WAY_IN, ONE_WAY_OUT = 1, 2, 4, 8, 16  # bits of an isolation's amount


class _Damage(NamedTuple):
    """The batch on this machine's disk in which a bit has changed, and the machine that needs it."""

    machine: ClusterNode
    asks: ClusterNode
    path: Path
    position: int
    data: bytes

    def bytes_on(self, machine: ClusterNode) -> bytes:
        """What a machine has in that place."""
        with suppress(FileNotFoundError):
            return bytes(machine.disk.read_bytes(self.path)[self.position : self.position + len(self.data)])
        return b""


class ClusterFaults(Faults):
    """Carries out what a list says, on several machines."""

    def __init__(
        self,
        world: World,
        network: Network,
        nodes: Sequence[ClusterNode],
        history: History,
        clients: Sequence[str],
        zookeeper: SimZooKeeper,
        invariants: Invariants,
        topic: str,
        *,
        survives_one: bool,
    ) -> None:
        super().__init__(world, network, nodes, history, clients)
        self._machines = nodes
        self._zookeeper = zookeeper
        self._invariants = invariants
        self._topic = topic
        self._survives_one = survives_one  # min.insync.replicas is two: what was acknowledged is on two machines
        self._powerless: dict[str, None] = {}  # machines that have lost what they had not flushed, or their disk
        self._damage: _Damage | None = None
        self._newest: list[list[Change]] | None = None  # ZooKeeper's log, while it has an older one
        self._armed: dict[str, list[Fault]] = {moment: [] for moment in MOMENTS}
        invariants.on_joined = self._joined
        invariants.on_proposed = self._proposed
        invariants.on_shown = self._shown
        invariants.on_election = self._elected
        invariants.on_deposed = lambda: history.add("fault", kind="election")

    def _action(self, kind: str) -> Callable[[SimNode, Fault], None]:
        return self._arm if " at " in kind else super()._action(kind)

    # Which machine

    def _node(self, fault: Fault) -> SimNode:
        if fault.node >= 0:
            return self._machines[fault.node]
        state = self._invariants.state(self._topic, 0)
        if fault.node == CONTROLLER:
            holder = next((node for node in self._machines if node.is_controller), None)
            return holder or self._machines[0]
        if state is None or state.leader < 0:
            return self._machines[fault.at % len(self._machines)]
        if fault.node == LEADER:
            return self._machines[state.leader]
        others = [broker for broker in state.isr if broker != state.leader]
        return self._machines[others[fault.at % len(others)] if others else state.leader]

    # Processes and machines

    def _loses_unflushed(self, node: SimNode) -> None:
        """Two machines must lose data for a record on two to be lost; whether both had it is not checked."""
        self._powerless[node.name] = None
        if len(self._powerless) > 1 or not self._survives_one:
            self._history.add("fault", kind="power cut")
        self._history.add("fault", kind="election")

    def _kill(self, node: SimNode, fault: Fault) -> None:
        """A deposed leader that has not learned of it may be killed, along with what only it has acknowledged."""
        self._history.add("fault", kind="election")
        super()._kill(node, fault)

    def _power_cut(self, node: SimNode, fault: Fault) -> None:
        """Once a disk was replaced, the last member with all the data loses only its process: otherwise no broker could lead
        until an operator asks for it."""
        if "disk" in self._powerless and not self._invariants.can_do_without(self._nodes.index(node)):
            self._kill(node, fault)
            return
        self._loses_unflushed(node)
        node.cut_power()
        self._invariants.lost_power(node)
        self._later(fault, node.start)

    def _kill_all(self, node: SimNode, fault: Fault) -> None:
        for one in self._machines:
            self._kill(one, fault)

    def _power_cut_all(self, node: SimNode, fault: Fault) -> None:
        for one in self._machines:
            self._power_cut(one, fault)

    def _may_lose(self, *brokers: int) -> bool:
        """Once in a history, and only if another broker has what was acknowledged, too. Not while ZooKeeper is older: a disk that
        has not seen more than that does not know it."""
        is_first = "disk" not in self._powerless and self._newest is None
        return is_first and self._survives_one and self._invariants.can_do_without(*brokers)

    def _lose_disk(self, node: SimNode, change: Callable[[], None]) -> None:
        self._powerless["disk"] = None
        self._loses_unflushed(node)
        self._history.add("fault", kind="power cut")
        node.kill()
        change()
        self._invariants.lost_disk(node)

    def _replace_disk(self, node: SimNode, fault: Fault) -> None:
        if self._may_lose(self._nodes.index(node)):
            self._lose_disk(node, self._machines[self._nodes.index(node)].replace_disk)
            self._later(fault, node.start)

    def _older_directory(self, node: SimNode, fault: Fault) -> None:
        """A copy is made while the broker is down, and put back later."""
        self._kill(node, replace(fault, lasts=10 * MS))
        self._later(fault, partial(self._put_back, node, node.disk.copy(), fault))

    def _put_back(self, node: SimNode, tree: Directory, fault: Fault) -> None:
        if self._may_lose(self._nodes.index(node)):
            self._lose_disk(node, partial(node.disk.put_back, tree, as_files=bool(fault.amount & 1)))
            self._world.after(20 * MS, node.start)

    def _damaged_byte(self, node: SimNode, fault: Fault) -> None:
        """In an old segment of a leader, and another broker's disk is replaced: it asks for what is there."""
        state = self._invariants.state(self._topic, 0)
        leader = None if state is None or state.leader < 0 else self._machines[state.leader]
        batches = [] if leader is None else leader.old_batches(self._topic, 0)
        lost = next(machine for machine in self._machines[fault.amount & 1 :] if machine is not leader)
        if leader is None or not batches or not self._may_lose(leader.broker_id, lost.broker_id):
            return
        path, position, size = batches[(fault.amount >> 1) % len(batches)]
        self._history.add("fault", kind=DAMAGE)
        leader.disk.damage(path, position + size - 1)
        data = leader.disk.read_bytes(path)[position : position + size]
        self._damage = _Damage(leader, lost, path, position, data)
        self._lose_disk(lost, lost.replace_disk)
        self._later(fault, lost.start)

    def _mend_damage(self) -> None:
        """What nobody has come across: an operator has. What a follower of the leader lacks is the broker's own affair."""
        damage, state = self._damage, self._invariants.state(self._topic, 0)
        if damage is None or state is None:
            return
        leads = state.leader == damage.machine.broker_id
        if leads and damage.asks.broker_id not in state.isr and len(damage.bytes_on(damage.asks)) < len(damage.data):
            return
        if damage.bytes_on(damage.machine) == damage.data:
            damage.machine.disk.damage(damage.path, damage.position + len(damage.data) - 1)

    def _slow_restart(self, node: SimNode, fault: Fault) -> None:
        """It comes back with everything, and its flushes are slow from then on."""
        self._kill(node, replace(fault, lasts=(100 * MS, 700 * MS, 700 * MS, 2 * SECOND)[fault.amount & 3]))
        node.sync_delay = (200 * MS, 3 * SECOND)[fault.amount >> 2 & 1]

        self._later(fault, lambda: setattr(node, "sync_delay", 0))

    def _restart_storm(self, node: SimNode, fault: Fault) -> None:
        for number in range(2 + fault.amount % 3):
            self._world.after(number * (fault.lasts // 4 + 50 * MS), self._kill_and_start, node)

    def _kill_and_start(self, node: SimNode) -> None:
        if not self.are_over:
            self._history.add("fault", kind="kill")
            node.kill()
            self._world.after(10 * MS, node.start)

    # At critical moments

    def _arm(self, node: SimNode, fault: Fault) -> None:
        self._armed[fault.kind.partition(" at ")[2]].append(fault)

    def _fire(self, what: str, *brokers: int) -> None:
        if not self._armed[what] or self.are_over:
            return
        fault = self._armed[what].pop(0)
        if fault.kind.startswith("cut"):
            self._cut_then(fault, *brokers)
            return
        chosen = brokers[fault.amount % len(brokers)]
        if chosen < 0:
            return
        node = self._machines[chosen]
        action = self._power_cut if fault.amount & 16 else self._pause if fault.amount & 32 else self._kill
        self._world.note(node.name, "fires", fault.kind)
        delayed = replace(fault, lasts=(0, 0, 300, 3 * MS)[fault.amount >> 6 & 3])
        self._later(delayed, lambda: action(node, fault))  # not after the end: nobody would start it again

    def _cut_then(self, fault: Fault, leader: int, member: int) -> None:
        """The leader loses ZooKeeper for a while, and its link to the member that it adds is cut. If the proposal has not
        arrived by then, that member's process is replaced in the meantime, with what its disk has kept."""
        machine, other = self._machines[leader], self._machines[member]
        self._world.note(machine.name, "fires", fault.kind)
        machine.cut_zookeeper_off()
        self._network.cut(machine.name, other.name)

        def healed() -> None:
            machine.heal_zookeeper()
            self._world.after(1_500 * MS, self._network.heal, machine.name, other.name)

        self._later(fault, healed)
        if fault.kind == "cut at proposal":
            action = self._power_cut if fault.amount & 1 else self._kill
            action(other, replace(fault, lasts=20 * MS))

    def _proposed(self, leader: int, member: int) -> None:
        self._fire("proposal", leader, member)

    def _shown(self, leader: int) -> None:
        self._fire("exposure", leader)

    def _joined(self, leader: int, member: int) -> None:
        self._fire("join", leader, member)

    def _elected(self, topic: str, index: int) -> None:
        self._history.add("fault", kind="election")
        state = self._invariants.state(topic, index)
        if state is not None:
            self._world.after(0, self._fire, "election", state.leader)

    def acknowledged(self, topic: str, index: int) -> None:
        """A producer got an acknowledgement: its records are safe."""
        state = self._invariants.state(topic, index)
        if state is not None:
            self._fire("answer", state.leader, *state.isr)

    # Links

    def _isolate(self, node: SimNode, fault: Fault) -> None:
        """From some of the others, in one direction or both."""
        what = fault.amount & 7 or PEERS | ZOOKEEPER
        machine = self._machines[self._nodes.index(node)]
        hosts = [other.name for other in self._machines if other is not node] if what & PEERS else []
        if fault.amount & 32 and len(hosts) > 1:
            hosts.pop(fault.at % len(hosts))
        hosts += self._clients if what & CLIENTS else []
        for host in hosts:
            if not fault.amount & ONE_WAY_OUT or fault.amount & ONE_WAY_IN:
                self._network.cut(host, node.name)
            if not fault.amount & ONE_WAY_IN:
                self._network.cut(node.name, host)
        if what & ZOOKEEPER:
            machine.cut_zookeeper_off()
        self._later(fault, lambda: self._join_again(machine, hosts))

    def _join_again(self, machine: ClusterNode, hosts: Sequence[str]) -> None:
        for host in hosts:
            self._network.heal(host, machine.name)
            self._network.heal(machine.name, host)
        machine.heal_zookeeper()

    def _reset_peers(self, node: SimNode, fault: Fault) -> None:
        for other in self._machines:
            if other is not node:
                self._network.reset_between(other.name, node.name)

    # ZooKeeper

    def _stop_zookeeper(self, node: SimNode, fault: Fault) -> None:
        if self._zookeeper.is_serving:
            self._zookeeper.stop()
            self._later(fault, self._serve)

    def _serve(self) -> None:
        if not self._zookeeper.is_serving:
            self._zookeeper.start()

    def _older_zookeeper(self, node: SimNode, fault: Fault) -> None:
        """It comes back from a backup, and after a while somebody restores its newest state. Every machine has seen more than
        that backup has: one that has not cannot know."""
        zookeeper, seen = self._zookeeper, min(node.seen_on_disk() for node in self._machines)
        if seen < 1 or not zookeeper.is_serving or zookeeper.is_frozen or self._newest is not None:
            return
        self._newest = list(zookeeper.log)
        path = metadata_log.entry_path(seen - fault.amount % (seen // 4 + 1))
        length = next(index for index, changes in enumerate(self._newest) if any(change.path == path for change in changes))
        zookeeper.stop()
        zookeeper.restore(self._newest[:length])
        zookeeper.start()
        self._later(fault, self._restore_newest)

    def _restore_newest(self) -> None:
        if self._newest is not None:
            self._thaw()
            self._zookeeper.stop()
            self._zookeeper.restore(self._newest)
            self._newest = None
            self._zookeeper.start()

    def _elect_zookeeper(self, node: SimNode, fault: Fault) -> None:
        if self._zookeeper.is_serving and not self._zookeeper.is_frozen:
            self._zookeeper.elect(0.1 + fault.lasts / SECOND / 2)

    def _freeze_zookeeper(self, node: SimNode, fault: Fault) -> None:
        if self._zookeeper.is_serving:
            self._zookeeper.freeze()
            self._later(fault, self._thaw)

    def _thaw(self) -> None:
        if self._zookeeper.is_frozen:
            self._zookeeper.thaw()

    def _lose_answers(self, node: SimNode, fault: Fault) -> None:
        self._zookeeper.answer_loss = 0.05 + (fault.amount % 30) / 100

        self._later(fault, lambda: setattr(self._zookeeper, "answer_loss", 0.0))

    def _store(self, node: SimNode) -> SimStore | None:
        return self._machines[self._nodes.index(node)].store

    def _lose_one_answer(self, node: SimNode, fault: Fault) -> None:
        store = self._store(node)
        if store is not None:
            store.lose_answer(is_committed=fault.at % 4 != 0)

    def _expire_session(self, node: SimNode, fault: Fault) -> None:
        store = self._store(node)
        if store is not None and store.client_session_id and self._zookeeper.is_serving:
            self._zookeeper.expire(store.client_session_id)

    def _drop_connection(self, node: SimNode, fault: Fault) -> None:
        store = self._store(node)
        if store is not None:
            store.drop()

    def end(self) -> None:
        self._mend_damage()
        self._zookeeper.answer_loss = 0.0
        self._restore_newest()
        self._serve()
        self._thaw()
        for node in self._machines:
            node.heal_zookeeper()
            for other in self._machines:
                if other is not node:
                    self._network.heal(node.name, other.name)
        super().end()
