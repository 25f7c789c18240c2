"""The znodes: their paths, and the encoding of the values of `metadata_image.py` to bytes and back.

Paths, keys and versions are those of Apache Kafka 3.9, so its own tools can read what we write. What we add is in separate keys,
which Kafka's readers ignore, as we ignore keys that we do not know:

    /brokers/ids/B                          + incarnation, directory_id
    /brokers/topics/T/partitions/P/state    + elr (eligible leaders), handover_to, is_lost, withdrawn, if set
    /config/users, /kafka-acl ..            users, ACLs and quotas (security_store.py)
    /logbus/incarnations/B                  empty; its version counts the processes that had the id B
    /logbus/members/B                       the directory_id with which B was last registered, which belongs to this cluster, and
                                            the number of that start: its incarnation
    /logbus/leaving/B                       ephemeral: B is being stopped
    /logbus/topic_ids/ID                    empty; exists while the topic with this id does
    /logbus/topic_names/N                   a topic's name; N is the name with '_' for each '.', if N has any '_'. Exists while
                                            the topic does, so that of two colliding names only one can be created
    /logbus/changes/c-N                     the metadata log (metadata_log.py)
    /logbus/generation                      raised when an operator accepts an older state (metadata_log.py)

A znode's version is not part of its data, so it is passed to the decoders. What cannot be decoded raises MalformedNode. Pure.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from logbus_broker.cluster import local_files, metadata_image, security_store, topic_registry
from logbus_broker.errors import MalformedNode
from logbus_broker.security.state import SecurityState

CLUSTER_ID = "/cluster/id"
BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPIC_SETTINGS = "/config/topics"
BROKER_SETTINGS = "/config/brokers"
DELETIONS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
INCARNATIONS = "/logbus/incarnations"
MEMBERS = "/logbus/members"
LEAVING = "/logbus/leaving"
TOPIC_IDS = "/logbus/topic_ids"
_TOPIC_NAMES = "/logbus/topic_names"
CHANGES = "/logbus/changes"
GENERATION = "/logbus/generation"


# Created before anything else, in this order. Kafka's own tools expect some of these parents to exist.
# Parents before children, and everything that a transaction may need as a parent: a multi does not create missing ones.
BASE_PATHS: Mapping[str, bytes] = {
    "/cluster": b"",
    "/brokers": b"",
    BROKERS: b"",
    TOPICS: b"",
    "/config": b"",
    TOPIC_SETTINGS: b"",
    BROKER_SETTINGS: b"",
    "/config/changes": b"",
    "/admin": b"",
    DELETIONS: b"",
    CONTROLLER_EPOCH: b"0",
    PRODUCER_ID_BLOCK: b"",
    "/logbus": b"",
    INCARNATIONS: b"",
    MEMBERS: b"",
    LEAVING: b"",
    TOPIC_IDS: b"",
    _TOPIC_NAMES: b"",
    CHANGES: b"",
    GENERATION: b"0",
    **dict.fromkeys(security_store.BASE_PATHS, b""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """The producer ids from `start` up to but excluding `end` are assigned to broker `broker_id`."""

    broker_id: int
    start: int
    end: int


# Paths


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{index}"


def state_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{index}/state"


def topic_id_path(topic_id: uuid.UUID) -> str:
    """Every write below a topic's nodes checks in the same transaction that this exists. Versions alone do not show that it is
    the same topic: they restart when a topic is deleted and recreated, and a late write would be applied to the new one."""
    return f"{TOPIC_IDS}/{local_files.encode_id(topic_id)}"


def topic_name_path(topic: str) -> str | None:
    """The node that reserves a topic's name, so that no colliding one can be created; None if no other name can collide."""
    taken = topic_registry.folded(topic)
    return f"{_TOPIC_NAMES}/{taken}" if "_" in taken else None


def topic_settings_path(topic: str) -> str:
    return f"{TOPIC_SETTINGS}/{topic}"


def broker_settings_path(name: str) -> str:
    """`name` is a broker's id, or EVERY_BROKER."""
    return f"{BROKER_SETTINGS}/{name}"


def deletion_path(topic: str) -> str:
    return f"{DELETIONS}/{topic}"


def incarnation_path(broker_id: int) -> str:
    return f"{INCARNATIONS}/{broker_id}"


def member_path(broker_id: int) -> str:
    return f"{MEMBERS}/{broker_id}"


def leaving_path(broker_id: int) -> str:
    return f"{LEAVING}/{broker_id}"


# Values to bytes and back


def encode_state(state: metadata_image.PartitionState) -> bytes:
    return to_json(state_row(state))


def decode_state(data: bytes, version: int) -> metadata_image.PartitionState:
    with reading("a partition's state"):
        return state_of(json.loads(data), version)


def state_row(state: metadata_image.PartitionState) -> dict[str, Any]:
    """The state as a JSON object; fields at their default are left out, as Kafka does with the recovery state."""
    row: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
    }
    # Left out at their defaults: that is what nearly all partitions have, and the states of a thousand partitions go into one
    # transaction.
    if state.is_recovering:
        row["leader_recovery_state"] = 1
    if state.eligible:
        row["elr"] = state.eligible
    if state.handover_to is not None:
        row["handover_to"] = state.handover_to
    if state.is_lost:
        row["is_lost"] = True
    if state.withdrawn:
        row["withdrawn"] = state.withdrawn
    return row


def state_of(row: Mapping[str, Any], version: int) -> metadata_image.PartitionState:
    return metadata_image.PartitionState(
        leader=row["leader"],
        leader_epoch=row["leader_epoch"],
        isr=tuple(row["isr"]),
        version=version,
        controller_epoch=row["controller_epoch"],
        eligible=tuple(row.get("elr", ())),
        handover_to=row.get("handover_to"),
        is_recovering=row.get("leader_recovery_state", 0) == 1,
        is_lost=row.get("is_lost", False),
        withdrawn=tuple(metadata_image.LogEnd(*end) for end in row.get("withdrawn", ())),
    )


def encode_topic(topic: metadata_image.TopicNode) -> bytes:
    return to_json(topic_row(topic))


def decode_topic(name: str, data: bytes, version: int) -> metadata_image.TopicNode:
    """Kafka topics from before 2.8 have no id: this broker cannot handle them, and they are refused."""
    with reading(f"topic {name!r}"):
        return topic_of(name, json.loads(data), version)


def topic_row(topic: metadata_image.TopicNode) -> dict[str, Any]:
    return {
        # JSON keys are strings: "0", "1". They are read back in numerical order below, since "10" sorts before "2" as a string.
        "partitions": dict(enumerate(topic.replicas)),
        "topic_id": local_files.encode_id(topic.topic_id),
        "adding_replicas": topic.adding,
        "removing_replicas": topic.removing,
        "version": 3,
    }


def topic_of(name: str, row: Mapping[str, Any], version: int) -> metadata_image.TopicNode:
    replicas = row["partitions"]
    return metadata_image.TopicNode(
        name=name,
        topic_id=decode_id(row["topic_id"]),
        replicas=tuple(tuple(replicas[str(index)]) for index in range(len(replicas))),
        version=version,
        adding=_by_partition(row.get("adding_replicas", {})),
        removing=_by_partition(row.get("removing_replicas", {})),
    )


def _by_partition(row: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    return {int(index): tuple(replicas) for index, replicas in row.items()}


_ENDPOINT = re.compile(r"(?P<listener>[^:/]+)://(\[(?P<ipv6>[^]]*)]|(?P<host>[^:]*)):(?P<port>-?\d+)")


def encode_broker(broker: metadata_image.BrokerNode, timestamp_ms: int) -> bytes:
    """`timestamp_ms` is for people who look at the node; nothing depends on it."""
    # `host` and `port` are for clients from before listeners had names; everything else reads `endpoints`.
    plain = next((endpoint for endpoint in broker.endpoints.values() if endpoint.security_protocol == "PLAINTEXT"), None)
    row = {
        "version": 5,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "endpoints": [
            f"{listener}://{f'[{endpoint.host}]' if ':' in endpoint.host else endpoint.host}:{endpoint.port}"
            for listener, endpoint in broker.endpoints.items()
        ],
        "listener_security_protocol_map": {
            listener: endpoint.security_protocol for listener, endpoint in broker.endpoints.items()
        },
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "features": {},
        "incarnation": broker.incarnation,
        "directory_id": broker.directory_id,
    }
    return to_json({**row, "rack": broker.rack} if broker.rack else row)


def decode_broker(broker_id: int, data: bytes) -> metadata_image.BrokerNode:
    """A broker of another implementation gets incarnation -1: none of its fetches count."""
    with reading(f"broker {broker_id}"):
        row = json.loads(data)
        protocols = row["listener_security_protocol_map"]
        endpoints = {}
        for text in row["endpoints"]:
            match = _ENDPOINT.fullmatch(text)
            if match is None:
                raise ValueError(f"endpoint {text!r}")
            host = match["ipv6"] if match["ipv6"] is not None else match["host"]
            listener = match["listener"]
            endpoints[listener] = metadata_image.Endpoint(
                host=host, port=int(match["port"]), security_protocol=protocols[listener]
            )
        return metadata_image.BrokerNode(
            broker_id=broker_id,
            incarnation=row.get("incarnation", -1),
            endpoints=endpoints,
            rack=row.get("rack") or "",
            directory_id=row.get("directory_id", ""),
        )


def encode_member(directory_id: str, start: int) -> bytes:
    return f"{directory_id} {start}".encode()


def decode_member(data: bytes) -> tuple[str, int]:
    """The directory's id and the number of its last start."""
    with reading("a broker's last start"):
        directory_id, _, start = data.decode().rpartition(" ")
        return directory_id, int(start)


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return to_json({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    with reading("the controller's node"):
        return int(json.loads(data)["brokerid"])


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    with reading("the controller's epoch"):
        return int(data)


def encode_generation(number: int) -> bytes:
    return str(number).encode()


def decode_generation(data: bytes) -> int:
    with reading("the generation"):
        return int(data)


def encode_settings(values: Mapping[str, str]) -> bytes:
    return to_json({"version": 1, "config": dict(values)})


def decode_settings(data: bytes, version: int) -> metadata_image.Settings:
    with reading("settings"):
        return metadata_image.Settings(
            values={str(name): str(value) for name, value in json.loads(data)["config"].items()}, version=version
        )


def encode_security(path: str, content: SecurityState) -> bytes:
    return to_json(security_store.to_row(path, content))


def decode_security(path: str, data: bytes) -> SecurityState:
    with reading(path):
        return security_store.from_row(path, json.loads(data)) if data else SecurityState()


def encode_cluster_id(cluster_id: str) -> bytes:
    return to_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    with reading("the cluster's id"):
        return str(json.loads(data)["id"])


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    row = {"version": 1, "broker": block.broker_id, "block_start": str(block.start), "block_end": str(block.end - 1)}
    return to_json(row)


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    """Kafka's block_end is the last id of the block."""
    with reading("the block of producer ids"):
        row = json.loads(data)
        return ProducerIdBlock(broker_id=row["broker"], start=int(row["block_start"]), end=int(row["block_end"]) + 1)


def decode_id(text: str) -> uuid.UUID:
    """From Kafka's text form of an id: 22 characters."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def to_json(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


@contextmanager
def reading(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedNode(f"{what} in ZooKeeper cannot be read: {type(error).__name__}: {error}") from error
