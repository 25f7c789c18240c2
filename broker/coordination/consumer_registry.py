"""The paper's consumer registries, /consumers/G/{ids,owners,offsets}: a mirror for people and for tools of that time.

    /consumers/G/ids/C          ephemeral: what consumer C has subscribed to
    /consumers/G/owners/T/P     ephemeral: which consumer reads the partition
    /consumers/G/offsets/T/P    up to where the group has read it, plain decimal

The authoritative data is in __consumer_offsets and in the coordinator's memory; no broker ever reads these nodes back. So they
are written asynchronously, by the group's coordinator, at most WRITES_PER_SECOND of them: a node that changes more often is
written with its latest value. A lost answer means another attempt, and in a new session the ephemeral nodes are recreated.

A group that moves to another coordinator is shown by both for a moment: each removes only what its own session owns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from urllib.parse import quote

from broker.coordination.asking import AnswerLost, Script, ask, commit, read
from broker.coordination.store import (
    TRANSACTION_BYTES_MAX,
    Create,
    Delete,
    Node,
    Operation,
    Outcome,
    Reason,
    Refused,
    Set,
    Store,
    Unknown,
)
from broker.errors import BrokerError

logger = logging.getLogger("broker.coordination")

TICK_SECONDS = 0.1
WRITES_PER_SECOND = 200  # a twentieth of what one ZooKeeper server can do: the mirror must not slow down elections
NODE_BYTES_MAX = TRANSACTION_BYTES_MAX // 2  # a consumer of ten thousand topics; leaves room to replace a node
_CONSUMERS = "/consumers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A group as it is shown: topics by consumer, and the consumer of each (topic, partition)."""

    subscriptions: Mapping[str, Iterable[str]]
    owners: Mapping[tuple[str, int], str]


class ConsumerRegistry:
    """See the module docstring. It listens to the store (StoreEvents)."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._groups: dict[str, dict[str, bytes]] = {}  # ephemeral nodes by group and path
        self._offsets: dict[str, int] = {}  # not written yet, by path
        self._due: dict[str, str] = {}  # ephemeral paths to write or remove, with their group
        self._parents: dict[str, None] = {}  # parents known to exist
        self._session_id = 0
        self._is_connected = False
        self._is_writing = False
        self._allowance = 0.0
        self._ticked: float | None = None

    def show(self, group: str, shown: Shown) -> None:
        """The group has new members or another assignment."""
        now = str(self._now_ms())
        place = f"{_CONSUMERS}/{_name(group)}"
        nodes = {f"{place}/ids/{_name(consumer)}": _subscription(topics, now) for consumer, topics in shown.subscriptions.items()}
        nodes |= {f"{place}/owners/{topic}/{index}": f"{owner}-0".encode() for (topic, index), owner in shown.owners.items()}
        for path in [path for path, data in nodes.items() if len(path) + len(data) > NODE_BYTES_MAX]:
            logger.warning("%s is not shown in ZooKeeper: it has too much to say", path)
            del nodes[path]
        old = self._groups.get(group, {})
        for path in (*old, *nodes):
            if path not in old or path not in nodes or (old[path] != nodes[path]):
                self._due[path] = group
        self._groups[group] = nodes

    def hide(self, group: str) -> None:
        """The group has no members, or another coordinator. Its offsets stay."""
        for path in self._groups.pop(group, {}):
            self._due[path] = group

    def committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """The group has read the partition up to the offset."""
        self._offsets[f"{_CONSUMERS}/{_name(group)}/offsets/{topic}/{partition}"] = offset

    # Events of the store

    def connected(self, session_id: int) -> None:
        self._is_connected = True
        if session_id != self._session_id:
            self._session_id = session_id
            # No node in ZooKeeper is ours any more: what was to be removed went with the previous session.
            self._due = {path: group for group, nodes in self._groups.items() for path in nodes}

    def suspended(self) -> None:
        self._is_connected = False

    def changed(self, path: str) -> None:
        """Nothing to do: no node is watched."""

    @property
    def due(self) -> float:
        """When to call `tick`, if there is anything to write."""
        if self._is_writing or not self._is_connected or not (self._due or self._offsets):
            return inf
        return -inf if self._ticked is None else self._ticked + TICK_SECONDS

    def tick(self, now: float) -> None:
        """Write what the allowance permits."""
        elapsed = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        self._allowance = min(self._allowance + elapsed * WRITES_PER_SECOND, WRITES_PER_SECOND)
        self._go_on()

    def _go_on(self) -> None:
        """One write after the other: of two concurrent writes to one node the older could win."""
        if self._is_writing or not self._is_connected or self._allowance < 1:
            return
        if self._due:
            path = next(iter(self._due))
            group = self._due.pop(path)
            self._begin(self._write_ephemeral(path, group), partial(self._due.setdefault, path, group))
        elif self._offsets:
            path = next(iter(self._offsets))
            offset = self._offsets.pop(path)
            self._begin(self._write_offset(path, offset), partial(self._offsets.setdefault, path, offset))

    def _begin(self, script: Script[None], put_back: Callable[[], object]) -> None:
        self._allowance -= 1
        self._is_writing = True

        def wrote(_: None, error: BrokerError | None) -> None:
            self._is_writing = False
            if error is not None:
                put_back()
            else:
                self._go_on()

        ask(self._store, script, wrote)

    def _write_ephemeral(self, path: str, group: str) -> Script[None]:
        found = yield from read(path)
        data = self._groups.get(group, {}).get(path)
        is_mine = isinstance(found, Node) and found.ephemeral_owner == self._store.session_id
        if data is None:
            if is_mine:
                yield from _commit([Delete(path=path)])
            return
        create = Create(path=path, data=data, is_ephemeral=True)
        if not isinstance(found, Node):
            yield from self._create(create)
        elif is_mine:
            yield from _commit([Set(path=path, data=data, version=found.version)])
        else:
            yield from _commit([Delete(path=path, version=found.version), create])

    def _write_offset(self, path: str, offset: int) -> Script[None]:
        data = str(offset).encode()
        outcome = yield from _commit([Set(path=path, data=data, version=-1)])
        if isinstance(outcome, Refused) and outcome.reason is Reason.NO_NODE:
            yield from self._create(Create(path=path, data=data))

    def _create(self, create: Create) -> Script[None]:
        parts = create.path.split("/")
        parents = ["/".join(parts[:end]) for end in range(2, len(parts))]
        for parent in parents:
            if parent not in self._parents:
                yield from _commit([Create(path=parent)])
                self._parents[parent] = None
        outcome = yield from _commit([create])
        if isinstance(outcome, Refused) and outcome.reason is Reason.NO_NODE:
            for parent in parents:  # removed by hand or by a tool
                self._parents.pop(parent, None)


def _commit(operations: Sequence[Operation]) -> Script[Outcome]:
    """A refusal is fine, too: then another coordinator was faster, and its data is newer."""
    outcome = yield from commit(operations)
    if isinstance(outcome, Unknown):
        raise AnswerLost(outcome.detail)
    return outcome


def _subscription(topics: Iterable[str], timestamp: str) -> bytes:
    row = {"version": 1, "subscription": dict.fromkeys(topics, 1), "pattern": "static", "timestamp": timestamp}
    return json.dumps(row, separators=(",", ":")).encode()


def _name(text: str) -> str:
    """A group or consumer may have any name; that of a node must not contain a slash or consist of dots only."""
    return quote(text, safe=" @:+,=") if text.strip(".") else text.replace(".", "%2E")
