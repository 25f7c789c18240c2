"""The journal: one sequential znode /logbus/changes/c-N for each transaction that changes something, holding its changes.

The authoritative state is in Kafka's znodes; the journal only announces changes to it. Every broker watches one directory and
reads what is new, which costs a hundredth of reading the changed znodes one by one. N is consecutive and in commit order, so a
gap means that entries were trimmed: then everything is read again. Losing the journal loses nothing.

An entry is JSON: a list of changes in their order, with consecutive states of one topic in one row. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.coordination.changes import (
    BrokerSettingsChange,
    DeletionAsked,
    IncarnationRaised,
    Journaled,
    StateChange,
    TopicChange,
    TopicGone,
    TopicSettingsChange,
)
from broker.coordination.image import Settings
from broker.coordination.store import Check, Create, Operation, Set
from broker.coordination.znodes import (
    CHANGES,
    decode_id,
    encode_state,
    reading,
    state_of,
    state_path,
    state_row,
    to_json,
    topic_id_path,
    topic_of,
    topic_row,
)
from broker.storage.meta_properties import encode_id

STATES_MAX = 250  # in one transaction: reading such an entry takes a millisecond

_PREFIX = "c-"


def journal_entry(changes: Sequence[Journaled]) -> Create:
    """The operation that every transaction carries in addition to its changes."""
    return Create(path=f"{CHANGES}/{_PREFIX}", data=encode_changes(changes), is_sequential=True)


def state_writes(changes: Sequence[StateChange]) -> list[Operation]:
    """The complete transaction that replaces partition states, each of which was read with the previous version; a caller with
    further fencing puts its checks in front. It is also refused if a topic was deleted in the meantime, even if recreated."""
    topics = dict.fromkeys(change.topic_id for change in changes)
    return [
        *(Check(path=topic_id_path(topic_id), version=-1) for topic_id in topics),
        *(
            Set(
                path=state_path(change.topic, change.index),
                data=encode_state(change.state),
                version=change.state.version - 1,
            )
            for change in changes
        ),
        journal_entry(changes),
    ]


def entry_path(position: int) -> str:
    return f"{CHANGES}/{_PREFIX}{position:010}"


def entry_positions(names: Iterable[str]) -> list[int]:
    """The positions of the entries among the names below /logbus/changes, in ascending order."""
    digits = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    return sorted(int(number) for number in digits if number.isdecimal())


def encode_changes(changes: Iterable[Journaled]) -> bytes:
    rows: list[dict[str, Any]] = []
    for change in changes:
        row = _row(change)
        if isinstance(change, StateChange) and rows and _are_of_one_topic(rows[-1], row):
            rows[-1]["states"] += row["states"]
        else:
            rows.append(row)
    return to_json({"version": 1, "changes": rows})


def decode_changes(data: bytes) -> tuple[Journaled, ...]:
    """The changes of an entry in their order. MalformedNode also if a newer broker wrote something this one does not know; the
    reader treats that as a gap."""
    with reading("an entry of the journal"):
        return tuple(change for row in json.loads(data)["changes"] for change in _DECODERS[row["kind"]](row))


def _are_of_one_topic(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["kind"] == "states" and row["id"] == other["id"] and row["topic"] == other["topic"])


def _row(change: Journaled) -> dict[str, Any]:
    match change:
        case StateChange(topic=name, topic_id=topic_id, index=index, state=state):
            states = [[index, state.version, state_row(state)]]
            return {"kind": "states", "topic": name, "id": encode_id(topic_id), "states": states}
        case TopicChange(topic=topic):
            return {"kind": "topic", "topic": topic.name, "node": topic_row(topic), "version": topic.version}
        case TopicSettingsChange(topic=name, topic_id=topic_id, settings=settings):
            return {"kind": "topic settings", "topic": name, "id": encode_id(topic_id), **_settings_row(settings)}
        case BrokerSettingsChange(name=name, settings=settings):
            return {"kind": "broker settings", "name": name, **_settings_row(settings)}
        case DeletionAsked(topic=name, topic_id=topic_id):
            return {"kind": "deletion asked", "topic": name, "id": encode_id(topic_id)}
        case TopicGone(topic=name, topic_id=topic_id):
            return {"kind": "topic gone", "topic": name, "id": encode_id(topic_id)}
        case IncarnationRaised(broker_id=broker_id, incarnation=incarnation):
            return {"kind": "incarnation", "broker": broker_id, "incarnation": incarnation}


def _settings_row(settings: Settings) -> dict[str, Any]:
    return {"config": dict(settings.values), "version": settings.version}


Row = Mapping[str, Any]


def _states(row: Row) -> Iterator[Journaled]:
    topic_id = decode_id(row["id"])
    for index, version, state in row["states"]:
        yield StateChange(topic=row["topic"], topic_id=topic_id, index=index, state=state_of(state, version))


def _topic(row: Row) -> Iterator[Journaled]:
    yield TopicChange(topic=topic_of(row["topic"], row["node"], row["version"]))


def _topic_settings(row: Row) -> Iterator[Journaled]:
    settings = Settings(values=row["config"], version=row["version"])
    yield TopicSettingsChange(topic=row["topic"], topic_id=decode_id(row["id"]), settings=settings)


def _broker_settings(row: Row) -> Iterator[Journaled]:
    yield BrokerSettingsChange(name=row["name"], settings=Settings(values=row["config"], version=row["version"]))


def _deletion_asked(row: Row) -> Iterator[Journaled]:
    yield DeletionAsked(topic=row["topic"], topic_id=decode_id(row["id"]))


def _topic_gone(row: Row) -> Iterator[Journaled]:
    yield TopicGone(topic=row["topic"], topic_id=decode_id(row["id"]))


def _incarnation(row: Row) -> Iterator[Journaled]:
    yield IncarnationRaised(broker_id=row["broker"], incarnation=row["incarnation"])


_DECODERS: Mapping[str, Callable[[Row], Iterator[Journaled]]] = {
    "states": _states,
    "topic": _topic,
    "topic settings": _topic_settings,
    "broker settings": _broker_settings,
    "deletion asked": _deletion_asked,
    "topic gone": _topic_gone,
    "incarnation": _incarnation,
}
