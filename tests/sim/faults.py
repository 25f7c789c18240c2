"""What happens to the machines of a simulation, drawn from a seed before anything runs: a list that can be printed, replayed and
shortened. An entry that does not apply is harmless (a broker that is down cannot be stopped), so any part of a list is valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.sim.histories import History
from tests.sim.network import Network
from tests.sim.nodes import SimNode
from tests.sim.world import MS, SECOND, World


@dataclass(frozen=True, slots=True)
class Fault:
    """At a time (microseconds), to a machine: `amount` and `lasts` mean what the kind defines."""

    at: int
    kind: str
    node: int
    amount: int = 0
    lasts: int = 0

    def __str__(self) -> str:
        return f"{self.at / SECOND:9.3f} s  {self.kind}, broker {self.node}" + (
            f", {self.amount}" * bool(self.amount) + f", for {self.lasts / SECOND:.3f} s" * bool(self.lasts)
        )


# The kinds of fault, and how often each is drawn.
KINDS: dict[str, int] = {
    "kill": 4,
    "kill within": 5,
    "power cut": 4,
    "power cut within": 6,
    "pause": 3,
    "stop": 2,
    "slow disk": 2,
    "hung disk": 2,
    "failing sync": 2,
    "full disk": 2,
    "cut clients off": 2,
    "reset clients": 2,
    "slow readers": 2,
    "clock jumps": 1,
    "clock rate": 1,
}

# Kinds whose amount holds further details (cluster_faults.py).
MEANT = frozenset(
    {
        *("isolate", "lose answers", "older zookeeper", "restart storm", "slow restart", "cut at proposal", "cut at join"),
        *("older directory", "damaged byte"),
        *("kill at join", "kill at election", "kill at answer", "kill at proposal", "kill at exposure"),
    }
)

CALLS_MAX = 40  # disk calls until a process ends inside one
RESTART_MAX = 2 * SECOND


def draw(
    chance: random.Random,
    *,
    until: int,
    count: int,
    nodes: Sequence[int] = (0,),
    kinds: Sequence[str] = (),
    weights: Mapping[str, int] = KINDS,
    lasts_max: int = RESTART_MAX,
    since: int = 200 * MS,
) -> tuple[Fault, ...]:
    """`count` faults, ordered by time; only of the given kinds, if there are any."""
    names = list(kinds or weights)
    faults = []
    for _ in range(count):
        kind = chance.choices(names, [weights[name] for name in names])[0]
        faults.append(
            Fault(
                at=chance.randint(since, until),
                kind=kind,
                node=chance.choice(nodes),
                amount=_amount(chance, kind),
                lasts=chance.choice([chance.randint(0, 300 * MS), chance.randint(0, lasts_max)]),
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _amount(chance: random.Random, kind: str) -> int:
    if kind in ("kill within", "power cut within"):
        return chance.randint(0, CALLS_MAX)
    if kind == "slow disk":
        return chance.choice([20 * MS, 200 * MS, 3 * SECOND])
    if kind == "full disk":
        return chance.randint(0, 500)
    if kind == "failing sync":
        return chance.randint(1, 3)
    if kind == "clock jumps":
        return chance.choice([-3_600_000, -5_000, 5_000, 3_000_000])
    if kind == "clock rate":
        return chance.randint(90, 110)
    return chance.randrange(1 << 16) if kind in MEANT else 0


class Faults:
    """Carries out what a list says."""

    def __init__(
        self, world: World, network: Network, nodes: Sequence[SimNode], history: History, clients: Sequence[str]
    ) -> None:
        self._world = world
        self._network = network
        self._nodes = nodes
        self._history = history
        self._clients = clients  # hosts
        self.are_over = False

    def schedule(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._world.after(fault.at - self._world.now, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        node = self._node(fault)
        self._world.note(node.name, fault.kind, fault.amount, fault.lasts)
        self._action(fault.kind)(node, fault)

    def _action(self, kind: str) -> Callable[[SimNode, Fault], None]:
        """The method that is named after the kind."""
        action: Callable[[SimNode, Fault], None] = getattr(self, "_" + kind.replace(" ", "_"))
        return action

    def _node(self, fault: Fault) -> SimNode:
        return self._nodes[fault.node]

    def _later(self, fault: Fault, action: Callable[[], None]) -> None:
        """When the fault ends, unless all faults were ended before."""
        self._world.after(fault.lasts, lambda: None if self.are_over else action())

    def _kill(self, node: SimNode, fault: Fault) -> None:
        self._history.add("fault", kind="kill")
        node.kill()
        self._later(fault, node.start)

    def _power_cut(self, node: SimNode, fault: Fault) -> None:
        self._history.add("fault", kind="power cut")
        node.cut_power()
        self._later(fault, node.start)

    def _kill_within(self, node: SimNode, fault: Fault) -> None:
        node.die_within(fault.amount, then=lambda: self._kill(node, fault))

    def _power_cut_within(self, node: SimNode, fault: Fault) -> None:
        node.die_within(fault.amount, then=lambda: self._power_cut(node, fault))

    def _pause(self, node: SimNode, fault: Fault) -> None:
        node.pause()
        self._later(fault, node.resume)

    def _stop(self, node: SimNode, fault: Fault) -> None:
        node.stop()
        self._later(fault, node.start)

    def _slow_disk(self, node: SimNode, fault: Fault) -> None:
        node.sync_delay = fault.amount

        self._later(fault, lambda: setattr(node, "sync_delay", 0))

    def _hung_disk(self, node: SimNode, fault: Fault) -> None:
        node.hang_disk()
        self._later(fault, node.answer_again)

    def _failing_sync(self, node: SimNode, fault: Fault) -> None:
        """Data lost by a failed sync is not on the disk although it can be read: a later power cut takes it, as it should."""
        node.disk.failing_syncs = fault.amount
        self._later(fault, node.restart_if_offline)

    def _full_disk(self, node: SimNode, fault: Fault) -> None:
        node.disk.room = fault.amount

        def emptied() -> None:
            node.disk.room = None
            node.restart_if_offline()

        self._later(fault, emptied)

    def _cut_clients_off(self, node: SimNode, fault: Fault) -> None:
        chosen = [host for number, host in enumerate(self._clients) if (fault.at + number) % 3]
        for host in chosen:
            self._network.cut(host, node.name)
            if fault.at % 2:
                self._network.cut(node.name, host)

        def healed() -> None:
            for host in chosen:
                self._network.heal(host, node.name)
                self._network.heal(node.name, host)

        self._later(fault, healed)

    def _reset_clients(self, node: SimNode, fault: Fault) -> None:
        for host in self._clients:
            self._network.reset_between(host, node.name)

    def _slow_readers(self, node: SimNode, fault: Fault) -> None:
        """Answers stay in the broker's queues; slices of files in them are read when they are sent."""
        self._network.block_all(node.name, fault.lasts)

    def _clock_jumps(self, node: SimNode, fault: Fault) -> None:
        node.clock.offset_ms += fault.amount

    def _clock_rate(self, node: SimNode, fault: Fault) -> None:
        node.clock.set_rate(fault.amount / 100)

    def end(self) -> None:
        """No more faults from now on."""
        self.are_over = True
        for node in self._nodes:
            for host in self._clients:
                self._network.heal(host, node.name)
                self._network.heal(node.name, host)
            node.heal()
