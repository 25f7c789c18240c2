"""The metadata log: one sequential znode /logbus/changes/c-N for each transaction that changes something, holding its changes.

The authoritative state is in Kafka's znodes; the log only announces changes to it. Every broker watches one directory and reads
what is new, which costs a hundredth of reading the changed znodes one by one. N is consecutive and in commit order, so a gap
means that entries were trimmed: then everything is read again. Losing the log loses nothing.

An entry is JSON: a list of changes in their order, with consecutive states of one topic in one row. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from logbus_broker.cluster import local_files, metadata_image, security_store, store, znodes

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
