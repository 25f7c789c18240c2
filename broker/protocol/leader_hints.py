"""Leader hints (KIP-951): an answer that says "not here" also says where, in tagged fields of Produce 10 and Fetch 12 and up.

A client that supports them contacts the other broker at once, instead of requesting metadata first; all others skip them.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from broker.protocol.primitives import write_compact_string, write_uvarint

_LEADER = Struct(">ii")
_LEADER_BYTES = _LEADER.size + 1  # with its own, empty tag section
_INT32 = Struct(">i")
_ENDPOINTS_TAG = 0
_NO_TAGS = b"\0"


class CurrentLeader(NamedTuple):
    """The broker that leads a partition, in which epoch, and its address."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def write_leader_tags(leader: CurrentLeader, tag: int) -> bytes:
    """The tags of a partition's answer; `tag` is the tag number of CurrentLeader in that message."""
    head = write_uvarint(1) + write_uvarint(tag) + write_uvarint(_LEADER_BYTES)
    return head + _LEADER.pack(leader.broker_id, leader.leader_epoch) + _NO_TAGS


def write_endpoint_tags(leaders: Iterable[CurrentLeader]) -> bytes:
    """The tags of the whole answer: each broker once."""
    nodes = {leader.broker_id: leader for leader in leaders}
    if not nodes:
        return _NO_TAGS
    rows = [
        b"".join(
            (
                _INT32.pack(node.broker_id),
                write_compact_string(node.host),
                _INT32.pack(node.port),
                write_compact_string(node.rack),
                _NO_TAGS,
            )
        )
        for node in nodes.values()
    ]
    data = write_uvarint(len(rows) + 1) + b"".join(rows)
    return write_uvarint(1) + write_uvarint(_ENDPOINTS_TAG) + write_uvarint(len(data)) + data
