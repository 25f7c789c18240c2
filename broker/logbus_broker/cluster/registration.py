"""This broker's place in the cluster: which cluster it is, which process owns the broker's id, and that it is registered.

Before recovery's outcome matters (`enter`):
1. the base paths are created, the cluster's id is created or compared with that of the data directory;
2. the incarnation is raised: the version of /logbus/incarnations/B. A process with an older one is a predecessor, and its
   fetches no longer count. The same transaction ensures that no process is registered under the id: it creates the broker's node
   and deletes it again, which fails if the node exists.
Once everything is ready (`register`), and again for each new session: /brokers/ids/B, only while the incarnation is still ours.

A registration found under our id is one of three:
* ours, of this session. Done.
* ours, of an earlier session, or that of our dead predecessor: it names our data directory, and we hold that directory's lock.
  It is replaced at once; waiting for its session to end would keep the broker away for nothing. But if it names other addresses
  than ours, and somebody answers there, then this directory is a copy of a live broker's, and it is a stranger's.
* a stranger's: with another data directory. A broker that moved to another disk leaves one that is gone within the session
  timeout, so we wait that long. If it is still there after that, a live process has our id, and we refuse to start.

An incarnation above ours means that another process has taken our id: while our session was over, or with a copy of our
directory. This process must not continue (`on_fenced`). The image shows this too (`seen`), and if our node was removed by hand.

No answer is relied on to arrive: every step begins by reading, so it can be repeated, and is, after each connection and each
`tick` until it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from logbus_broker.clock import Clock
from logbus_broker.cluster import metadata_image, metadata_log, znodes
from logbus_broker.cluster.store import (
    AnswerLost,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Refused,
    RunningScript,
    Script,
    Set,
    Store,
    StoreEvents,
    Unknown,
    commit,
    read,
    read_all,
    run_script,
)
from logbus_broker.errors import BrokerError, StartupError

logger = logging.getLogger("broker.cluster")

Then = Callable[[BrokerError | None], None]
Answers = Callable[[metadata_image.Endpoint, Callable[[bool], None]], None]  # whether somebody listens at an address
_Addresses = tuple[metadata_image.Endpoint, ...]
_Step = Callable[[], Script[None]]


class RunningElsewhere(StartupError):
    """A registration of our id that is not ours."""


class IdTaken(StartupError):
    """Another process has raised the incarnation: this one is outdated."""


class Registration(StoreEvents):
    """See the module docstring. `node` is what this broker publishes about itself; its incarnation is set here. `cluster_id` is
    that of the data directory, "" for a new one; then it becomes what ZooKeeper has, or `new_cluster_id` if that has none."""

    def __init__(
        self,
        store: Store,
        node: metadata_image.BrokerNode,
        *,
        cluster_id: str,
        new_cluster_id: str,
        clock: Clock,
        session_timeout_ms: int,
        on_fenced: Callable[[BrokerError], None],
        answers: Answers,
    ) -> None:
        assert node.directory_id, "a broker without a directory's id takes every other for itself"
        self.node = node
        self.cluster_id = cluster_id
        self._new_cluster_id = new_cluster_id
        self._store = store
        self._clock = clock
        self._session_timeout_ms = session_timeout_ms
        self._on_fenced = on_fenced
        self._steps: dict[_Step, Then | None] = {}  # wanted in each session, with the callback for the first time
        self._owed: dict[_Step, None] = {}
        self._asking: RunningScript[None] | None = None
        self._stranger_since: float | None = None
        self._is_entered = False
        self._is_registered = False  # at least once
        self._answers = answers
        self._has_answered: dict[
            tuple[metadata_image.Endpoint, ...], bool
        ] = {}  # a predecessor's addresses; empty: not known yet
        # Whether an earlier process was registered with this data directory, and the number of its start; set by `enter`.
        self.was_member = False
        self.last_start = -1

    @property
    def incarnation(self) -> int:
        return self.node.incarnation

    def enter(self, then: Then) -> None:
        """Cluster id and incarnation; `then(None)` when this process is the broker, or with the reason why it cannot be."""
        self._want(self._enter, then)

    def register(self, then: Then) -> None:
        """Register now and in each new session; `then` is called the first time."""
        self._want(self._register, then)

    def leave(self, then: Then) -> None:
        """Announce that the broker is being stopped."""
        self._want(self._leave, then)

    def seen(self, image: metadata_image.MetadataImage) -> None:
        """Check what the image says about this broker; called with each new one."""
        if self._is_entered and image.incarnations.get(self.node.broker_id, -1) > self.incarnation:
            self.close()
            self._on_fenced(self._id_taken())
        elif self._is_registered and image.brokers.get(self.node.broker_id) != self.node:
            self._owed[self._register] = None
            self._go_on()

    def close(self) -> None:
        """Stop all steps; the end of the session removes the ephemeral nodes."""
        self._is_entered = self._is_registered = False
        self._steps.clear()
        self._owed.clear()
        if self._asking is not None:
            self._asking.stop()
            self._asking = None

    # Events of the store; what has become of the registration shows on the next connection

    def connected(self, session_id: int) -> None:
        if self._asking is not None:
            self._asking.stop()
            self._asking = None
        self._stranger_since = None  # no session ended while ZooKeeper was away: a stranger's timeout restarts
        self._owed = dict.fromkeys(self._steps)
        self._go_on()

    def tick(self) -> None:
        """About once a second: repeat what was not answered or had to wait."""
        self._go_on()

    def _want(self, step: _Step, then: Then) -> None:
        self._steps[step] = then
        self._owed[step] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._asking is None and self._owed:
            step = next(iter(self._owed))
            self._asking = run_script(self._store, step(), partial(self._end, step))

    def _end(self, step: _Step, _: None, error: BrokerError | None) -> None:
        self._asking = None
        if isinstance(error, AnswerLost):
            return  # still owed
        if isinstance(error, RunningElsewhere) and self._may_pass():
            return
        self._owed.pop(step, None)
        then = self._steps.get(step)
        self._is_registered |= error is None and step == self._register
        # The incarnation outlives sessions, so a process enters once. The registration and the notice that we are leaving are
        # ephemeral: they vanish with the session and are owed again in the next one.
        if error is None and step != self._enter:
            self._steps[step] = None  # wanted again in the next session, without a callback
        else:
            self._steps.pop(step, None)
        if then is not None:
            then(error)
        elif isinstance(error, StartupError):
            self._on_fenced(error)
        elif error is not None:
            logger.error("%s", error)
        self._go_on()

    def _may_pass(self) -> bool:
        """Whether a stranger's registration may still belong to a session that is about to end."""
        now = self._clock.monotonic()
        if self._stranger_since is None:
            self._stranger_since = now
        return now - self._stranger_since <= self._session_timeout_ms / 1000

    # The steps

    def _enter(self) -> Script[None]:
        yield from make_base_paths()
        yield from self._agree_on_cluster()
        yield from self._raise_incarnation()

    def _agree_on_cluster(self) -> Script[None]:
        node = yield from read(znodes.CLUSTER_ID)
        if isinstance(node, NoNode):
            proposed = self.cluster_id or self._new_cluster_id
            yield from commit([Create(path=znodes.CLUSTER_ID, data=znodes.encode_cluster_id(proposed))])
            node = yield from read(znodes.CLUSTER_ID)  # ours, or that of another broker that was faster
            if isinstance(node, NoNode):
                raise AnswerLost("could not create the cluster id")
        stored = znodes.decode_cluster_id(node.data)
        if self.cluster_id not in ("", stored):
            raise StartupError(
                f"the data directory belongs to cluster {self.cluster_id}, but ZooKeeper has cluster {stored}: set "
                "zookeeper.connect to the servers and the path of the directory's own cluster, or log.dirs to an empty directory"
            )
        self.cluster_id = stored

    def _raise_incarnation(self) -> Script[None]:
        directory_id = self.node.directory_id.encode()
        incarnation_path = znodes.incarnation_path(self.node.broker_id)
        broker_path = znodes.broker_path(self.node.broker_id)
        paths = [incarnation_path, broker_path, znodes.member_path(self.node.broker_id)]
        incarnation, registered, member = yield from read_all(paths)
        next_incarnation = incarnation.version + 1 if isinstance(incarnation, Node) else 0
        operations: list[Operation]
        if isinstance(registered, NoNode):
            # ZooKeeper has no check for the absence of a node, but Create implies one. Without it a predecessor that registers
            # between our read and this transaction would be live next to us, unaware that its incarnation is over.
            operations = [Create(path=broker_path, is_ephemeral=True), Delete(path=broker_path)]
        else:
            self._check_directory(registered)
            self._check_predecessor(registered)
            operations = [Check(path=broker_path, version=registered.version)]
        if isinstance(incarnation, Node):
            operations.append(Set(path=incarnation_path, data=directory_id, version=incarnation.version))
        else:
            operations.append(Create(path=incarnation_path, data=directory_id))
        operations.append(
            metadata_log.log_entry(
                [metadata_image.IncarnationRaised(broker_id=self.node.broker_id, incarnation=next_incarnation)]
            )
        )
        outcome = yield from commit(operations)
        if isinstance(outcome, Refused):
            raise AnswerLost(f"another process is taking the broker's id: {outcome}")
        if isinstance(outcome, Unknown):
            raise AnswerLost(outcome.detail)  # if it was raised, no process uses it: the next attempt takes another
        if isinstance(member, Node):
            last_directory_id, last_start = znodes.decode_member(member.data)
            self.was_member = last_directory_id == self.node.directory_id
            self.last_start = last_start if self.was_member else -1
        self.node = replace(self.node, incarnation=next_incarnation)
        self._is_entered = True
        self._stranger_since = None

    def _check_directory(self, registered: Node) -> None:
        other = znodes.decode_broker(self.node.broker_id, registered.data)
        if other.directory_id != self.node.directory_id:
            places = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in other.endpoints.values())
            raise RunningElsewhere(
                f"broker {self.node.broker_id} is running elsewhere, at {places}, with another data directory: give this one a "
                "broker.id of its own, or stop the other"
            )

    def _check_predecessor(self, registered: Node) -> None:
        """It has our directory's id. If it listens elsewhere, it may still be alive, and our directory a copy of its own."""
        other = znodes.decode_broker(self.node.broker_id, registered.data)
        addresses = tuple(other.endpoints.values())
        if not addresses or other.endpoints == self.node.endpoints:
            return
        if addresses not in self._has_answered:
            self._answers(addresses[0], partial(self._asked, addresses))
            raise AnswerLost(f"asking whether broker {self.node.broker_id} still answers at {addresses[0].host}")
        if self._has_answered.pop(addresses):
            address = addresses[0]
            raise RunningElsewhere(
                f"broker {self.node.broker_id} is running elsewhere, at {address.host}:{address.port}, and this data directory "
                "is a copy of its own: stop that one first, or give this one a broker.id of its own and an empty directory"
            )

    def _asked(self, addresses: _Addresses, answers: bool) -> None:
        self._has_answered[addresses] = answers
        self._go_on()

    def _register(self) -> Script[None]:
        broker_id = self.node.broker_id
        paths = [
            znodes.incarnation_path(broker_id),
            znodes.broker_path(broker_id),
            znodes.leaving_path(broker_id),
            znodes.member_path(broker_id),
        ]
        incarnation, registered, leaving, member = yield from read_all(paths)
        session_id = self._store.session_id
        self._check_incarnation(incarnation)
        operations: list[Operation] = [Check(path=paths[0], version=self.incarnation)]
        if isinstance(registered, Node):
            self._check_directory(registered)
            if registered.ephemeral_owner == session_id:
                return
            operations.append(Delete(path=paths[1], version=registered.version))
        if isinstance(leaving, Node) and leaving.ephemeral_owner != session_id:
            operations.append(Delete(path=paths[2]))  # our predecessor was leaving; we are not
        data = znodes.encode_broker(self.node, self._clock.now_ms())
        operations.append(Create(path=paths[1], data=data, is_ephemeral=True))
        last_start = znodes.encode_member(self.node.directory_id, self.incarnation)
        if isinstance(member, NoNode):
            operations.append(Create(path=paths[3], data=last_start))
        elif member.data != last_start:
            operations.append(Set(path=paths[3], data=last_start, version=member.version))
        yield from _must_commit(operations)

    def _check_incarnation(self, incarnation: Node | NoNode) -> None:
        if not isinstance(incarnation, Node) or incarnation.version != self.incarnation:
            raise self._id_taken()

    def _id_taken(self) -> IdTaken:
        return IdTaken(
            f"another process has started as broker {self.node.broker_id}: this one stops. Give each broker its own broker.id, "
            "and do not copy data directories"
        )

    def _leave(self) -> Script[None]:
        path = znodes.leaving_path(self.node.broker_id)
        incarnation, leaving = yield from read_all([znodes.incarnation_path(self.node.broker_id), path])
        self._check_incarnation(incarnation)
        operations: list[Operation] = []
        if isinstance(leaving, Node):
            if leaving.ephemeral_owner == self._store.session_id:
                return
            operations.append(Delete(path=path))
        operations.append(Create(path=path, is_ephemeral=True))
        yield from _must_commit(operations)


def make_base_paths() -> Script[None]:
    """Create what is missing of the paths that every transaction relies on."""
    nodes = yield from read_all(list(znodes.BASE_PATHS))
    paths = zip(znodes.BASE_PATHS.items(), nodes, strict=True)
    missing = [Create(path=path, data=data) for (path, data), node in paths if isinstance(node, NoNode)]
    if missing:
        yield from _must_commit(missing)


def _must_commit(operations: Sequence[Operation]) -> Script[None]:
    """Any outcome other than Committed makes the step read again and retry."""
    outcome = yield from commit(operations)
    if not isinstance(outcome, Committed):
        raise AnswerLost(str(outcome))
