"""The metadata log: one sequential znode /logbus/changes/c-N for each transaction that changes something, holding its changes;
and whether ZooKeeper holds the history that this broker knows, or an older one from a backup.

The authoritative state is in Kafka's znodes; the log only announces changes to it. Every broker watches one directory and reads
what is new, which costs a hundredth of reading the changed znodes one by one. N is consecutive and in commit order, so a gap
means that entries were trimmed: then everything is read again. Losing the log loses nothing.

An entry is JSON: a list of changes in their order, with consecutive states of one topic in one row. Pure.

A broker that obeyed an older ZooKeeper would cut and delete what that does not know yet. So each broker remembers the newest
entry of the metadata log that it has seen, also on its disk, before it stores anything because of it (`log_directory.py`). At
each connection that entry is looked up before anything else is read or written:

    the same        go on
    another one, or the log ends before it      ZooKeeper's data is from a backup. Until that changes this broker acts as if
                    ZooKeeper were away, and says why. A server of the ensemble that lags behind looks the same for a moment
    trimmed         so much has happened since that this cannot be told: go on, but nothing on this disk is removed
                    because ZooKeeper does not know it (`is_trusted`)

An operator who has nothing newer accepts what is there (`python -m logbus_broker recover`): that raises the generation, a number
in ZooKeeper that each broker remembers too. A higher one counts more than any entry; a running broker then stops, since only a
start can bring its disk in line.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

from logbus_broker.clock import Clock
from logbus_broker.cluster import local_files, metadata_image, security_store, store, znodes
from logbus_broker.errors import BrokerError, StartupError

STATES_MAX = 250  # in one transaction: reading such an entry takes a millisecond

_PREFIX = "c-"


def log_entry(changes: Sequence[metadata_image.LoggedChange]) -> store.Create:
    """The operation that every transaction carries in addition to its changes."""
    return store.Create(path=f"{znodes.CHANGES}/{_PREFIX}", data=encode_changes(changes), is_sequential=True)


def state_writes(changes: Sequence[metadata_image.StateChange]) -> list[store.Operation]:
    """The complete transaction that replaces partition states, each of which was read with the previous version; a caller with
    further fencing puts its checks in front. It is also refused if a topic was deleted in the meantime, even if recreated."""
    topics = dict.fromkeys(change.topic_id for change in changes)
    return [
        *(store.Check(path=znodes.topic_id_path(topic_id), version=-1) for topic_id in topics),
        *(
            store.Set(
                path=znodes.state_path(change.topic, change.index),
                data=znodes.encode_state(change.state),
                version=change.state.version - 1,
            )
            for change in changes
        ),
        log_entry(changes),
    ]


def entry_path(position: int) -> str:
    return f"{znodes.CHANGES}/{_PREFIX}{position:010}"


def entry_positions(names: Iterable[str]) -> list[int]:
    """The positions of the entries among the names below /logbus/changes, in ascending order."""
    digits = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    return sorted(int(number) for number in digits if number.isdecimal())


def encode_changes(changes: Iterable[metadata_image.LoggedChange]) -> bytes:
    rows: list[dict[str, Any]] = []
    for change in changes:
        row = _row(change)
        last = rows[-1] if rows else {"kind": None}
        if row["kind"] == last["kind"] == "states" and (row["id"], row["topic"]) == (last["id"], last["topic"]):
            last["states"] += row["states"]
        else:
            rows.append(row)
    return znodes.to_json({"version": 1, "changes": rows})


def decode_changes(data: bytes) -> tuple[metadata_image.LoggedChange, ...]:
    """The changes of an entry in their order. MalformedNode also if a newer broker wrote something this one does not know; the
    reader treats that as a gap."""
    with znodes.reading("an entry of the metadata log"):
        return tuple(change for row in json.loads(data)["changes"] for change in _changes_of(row))


def _row(change: metadata_image.LoggedChange) -> dict[str, Any]:
    match change:
        case metadata_image.StateChange(topic=name, topic_id=topic_id, index=index, state=state):
            states = [[index, state.version, znodes.state_row(state)]]
            return {"kind": "states", "topic": name, "id": local_files.encode_id(topic_id), "states": states}
        case metadata_image.TopicChange(topic=topic):
            return {"kind": "topic", "topic": topic.name, "node": znodes.topic_row(topic), "version": topic.version}
        case metadata_image.TopicSettingsChange(topic=name, topic_id=topic_id, settings=settings):
            return {"kind": "topic settings", "topic": name, "id": local_files.encode_id(topic_id), **_settings_row(settings)}
        case metadata_image.BrokerSettingsChange(name=name, settings=settings):
            return {"kind": "broker settings", "name": name, **_settings_row(settings)}
        case metadata_image.SecurityChange(version=version, nodes=nodes):
            rows = {path: security_store.to_row(path, content) for path, content in nodes.items()}
            return {"kind": "security", "nodes": rows, "version": version}
        case metadata_image.DeletionRequested(topic=name, topic_id=topic_id):
            return {"kind": "deletion requested", "topic": name, "id": local_files.encode_id(topic_id)}
        case metadata_image.TopicDeleted(topic=name, topic_id=topic_id):
            return {"kind": "topic deleted", "topic": name, "id": local_files.encode_id(topic_id)}
        case metadata_image.IncarnationRaised(broker_id=broker_id, incarnation=incarnation):
            return {"kind": "incarnation", "broker": broker_id, "incarnation": incarnation}


def _settings_row(settings: metadata_image.Settings) -> dict[str, Any]:
    return {"config": dict(settings.values), "version": settings.version}


def _changes_of(row: Mapping[str, Any]) -> Iterator[metadata_image.LoggedChange]:
    match row["kind"]:
        case "states":
            topic_id = znodes.decode_id(row["id"])
            for index, version, state in row["states"]:
                yield metadata_image.StateChange(
                    topic=row["topic"], topic_id=topic_id, index=index, state=znodes.state_of(state, version)
                )
        case "topic":
            yield metadata_image.TopicChange(topic=znodes.topic_of(row["topic"], row["node"], row["version"]))
        case "topic settings":
            settings = metadata_image.Settings(values=row["config"], version=row["version"])
            yield metadata_image.TopicSettingsChange(topic=row["topic"], topic_id=znodes.decode_id(row["id"]), settings=settings)
        case "broker settings":
            yield metadata_image.BrokerSettingsChange(
                name=row["name"], settings=metadata_image.Settings(values=row["config"], version=row["version"])
            )
        case "security":
            nodes = {path: security_store.from_row(path, content) for path, content in row["nodes"].items()}
            yield metadata_image.SecurityChange(version=row["version"], nodes=nodes)
        case "deletion requested":
            yield metadata_image.DeletionRequested(topic=row["topic"], topic_id=znodes.decode_id(row["id"]))
        case "topic deleted":
            yield metadata_image.TopicDeleted(topic=row["topic"], topic_id=znodes.decode_id(row["id"]))
        case "incarnation":
            yield metadata_image.IncarnationRaised(broker_id=row["broker"], incarnation=row["incarnation"])
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


# Whether ZooKeeper holds the history that this broker knows, or an older one from a backup.


logger = logging.getLogger("broker.cluster")

_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest entry of the metadata log that a broker has seen, by its position and by when ZooKeeper made it (transaction,
    milliseconds); -1 before the first. And the generation of that history."""

    position: int = -1
    birth: tuple[int, int] = (0, 0)
    generation: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """In all of history."""
        return self.generation, self.position

    def to_json(self) -> dict[str, Any]:
        return {"position": self.position, "birth": list(self.birth), "generation": self.generation}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Seen:
        transaction, at_ms = values["birth"]
        return cls(position=values["position"], birth=(transaction, at_ms), generation=values["generation"])


class _Waiting(NamedTuple):
    """A request until there is a connection to our history."""

    deadline: float
    send: Callable[[], None]
    then: Callable[[Any], None]


class MetadataHistory(store.StoreEvents):
    """A store that answers only while its history is this broker's; see the module docstring. `newest_seen` is None in a
    directory that has seen nothing. Requests wait for a connection, and the look at it, for `timeout_ms`; `on_accepted` is called
    with why this process must stop."""

    def __init__(
        self,
        inner: store.Store,
        newest_seen: Seen | None,
        clock: Clock,
        *,
        timeout_ms: int,
        on_accepted: Callable[[BrokerError], None],
    ) -> None:
        self.newest_seen = newest_seen or Seen()
        self.is_trusted = False  # set by the first connection
        self.refusal = ""  # why ZooKeeper's state is not obeyed
        self._inner = inner
        self._is_new = newest_seen is None
        self._clock = clock
        self._on_accepted = on_accepted
        self._events = store.StoreEvents()
        self.session_id = 0
        self._is_open = False
        self._was_open = False  # at least once
        self._is_connected = False
        self._looking: store.RunningScript[str] | None = None
        self._look_again_at = inf
        self._timeout = timeout_ms / 1000
        self._waiting: deque[_Waiting] = deque()

    # As a store

    def begin(self, events: store.StoreEvents) -> None:
        self._events = events
        self._inner.begin(self)

    def read(self, path: str, then: Callable[[store.Found], None], *, watch: bool = False) -> None:
        self._send(partial(self._inner.read, path, then, watch=watch), then)

    def children(self, path: str, then: Callable[[store.Children], None], *, watch: bool = False) -> None:
        self._send(partial(self._inner.children, path, then, watch=watch), then)

    def commit(self, operations: Sequence[store.Operation], then: Callable[[store.Outcome], None]) -> None:
        self._send(partial(self._inner.commit, operations, then), then)

    def _send(self, send: Callable[[], None], then: Callable[[Any], None]) -> None:
        if self._is_open:
            send()
        else:
            self._waiting.append(_Waiting(self._clock.monotonic() + self._timeout, send, then))

    def drain(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and (self.refusal or self._waiting[0].deadline <= now):
            self._waiting.popleft().then(store.Unknown(detail=self.refusal or "there is no connection to ZooKeeper"))
        if now >= self._look_again_at:
            self._look()
        self._inner.drain()

    def next_deadline(self) -> float:
        first = self._waiting[0].deadline if self._waiting else inf
        return min(-inf if self._waiting and self.refusal else first, self._look_again_at, self._inner.next_deadline())

    def close(self, then: Callable[[], None]) -> None:
        self._inner.close(then)

    # Events of the store

    def connected(self, session_id: int) -> None:
        self.session_id = session_id
        self._is_connected = True
        self._look()

    def suspended(self) -> None:
        self._stop_looking()
        self._is_connected = False
        if self._is_open:
            self._is_open = False
            self._events.suspended()

    def changed(self, path: str) -> None:
        if self._is_open:
            self._events.changed(path)

    # The look at it

    def saw(self, position: int, birth: tuple[int, int]) -> None:
        """This broker has applied the entries up to this one."""
        self.newest_seen = Seen(position=position, birth=birth, generation=self.newest_seen.generation)

    def _look(self) -> None:
        self._stop_looking()
        if self._is_connected:
            self._looking = store.run_script(self._inner, self._compare(), self._compared)

    def _stop_looking(self) -> None:
        self._look_again_at = inf
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    def _compared(self, refusal: str | None, error: BrokerError | None) -> None:
        self._looking = None
        if error is not None or refusal is None:
            self._look_again_at = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
            return
        if refusal:
            self._look_again_at = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
            if refusal != self.refusal:
                logger.critical("%s", refusal)
            self.refusal = refusal
            if self._is_open:
                self._is_open = False
                self._events.suspended()
            return
        self.refusal = ""
        if self._is_connected:
            self._is_open = self._was_open = True
            waiting, self._waiting = self._waiting, deque()
            for request in waiting:
                request.send()
            self._events.connected(self.session_id)

    def _compare(self) -> store.Script[str]:
        """Why this is not our history; empty: it may be."""
        newest_seen = self.newest_seen
        paths = [znodes.GENERATION, entry_path(max(0, newest_seen.position))]
        generation, entry = yield from store.read_all(paths)
        number = znodes.decode_generation(generation.data) if isinstance(generation, store.Node) else 0
        if self._is_new or (isinstance(generation, store.NoNode) and not self._was_open):
            # Nothing is known here, or nothing there: the start compares the disk with what it finds.
            self._adopt(number, is_trusted=False)
        elif number > newest_seen.generation:
            if self._was_open:
                self._on_accepted(StartupError("an operator has accepted ZooKeeper's state as it is: start this broker again"))
            self._adopt(number, is_trusted=False)
        elif number < newest_seen.generation:
            return _refusal(f"is of generation {number}, and this broker has seen {newest_seen.generation}")
        elif newest_seen.position < 0:
            self.is_trusted = True
        elif isinstance(entry, store.Node):
            if entry.birth != newest_seen.birth:
                return _refusal(
                    f"has another entry {newest_seen.position} in its metadata log than the one that this broker has seen"
                )
            self.is_trusted = True
        else:
            positions = entry_positions((yield from store.children(znodes.CHANGES)))
            if not positions or positions[-1] < newest_seen.position:
                last = positions[-1] if positions else "none"
                return _refusal(
                    f"ends at entry {last} of its metadata log, and this broker has seen entry {newest_seen.position}"
                )
            self.is_trusted = False
        return ""

    def _adopt(self, generation: int, *, is_trusted: bool) -> None:
        self.is_trusted = is_trusted
        self._is_new = False
        if generation != self.newest_seen.generation:
            self.newest_seen = Seen(generation=generation)


def _refusal(what: str) -> str:
    return (
        f"ZooKeeper's data is older than this broker's, as if restored from a backup: it {what}. Nothing of it is obeyed, and "
        "nothing is deleted. Restore a newer state of ZooKeeper, or accept this one: `python -m logbus_broker recover` shows "
        "what would be lost"
    )
