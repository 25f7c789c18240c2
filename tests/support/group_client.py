"""Group requests: to an engine in this process, where every answer is decoded with kio as well, or by any other way to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logbus_broker.api.handler import Pending
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import request_class, response_class

from tests.support.engine import Harness
from tests.support.kio_messages import read_response

SESSION_MS = 10_000


class GroupRequests:
    """The requests of members and administrators of `group`. `ask` sends one in the highest version, unless one is passed."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.ask = ask
        self.group = "g"

    def join(self, member_id: str = "", *, version: int = 9, instance_id: str | None = None, **changes: Any) -> Any:
        row = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
        values: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "protocol_type": "consumer",
            "protocols": [row(name="range", metadata=subscription("clicks"))],
            "reason": None,
        }
        return self._send_as_member(ApiKey.JOIN_GROUP, version, **{**values, **changes})

    def enter(self, *, version: int = 9, **changes: Any) -> Any:
        """Join an empty group; versions that require a member id get it by a first request."""
        first = self.join(version=version, **changes)
        return self.join(first.member_id, version=version, **changes) if first.error_code == 79 else first

    def sync(self, joined: Any, *, version: int = 5, assignment: bytes = b"0,1", **changes: Any) -> Any:
        row = request_class(ApiKey.SYNC_GROUP).SyncGroupRequestAssignment
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [row(member_id=joined.member_id, assignment=assignment)],
        }
        return self._send_as_member(ApiKey.SYNC_GROUP, version, **{**values, **changes})

    def _send_as_member(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        return self.ask(api_key, version, **values)

    def heartbeat(self, joined: Any, version: int = 4, instance_id: str | None = None) -> int:
        return self.ask(
            ApiKey.HEARTBEAT,
            version,
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance_id,
        ).error_code

    def leave(self, *members: tuple[str, str | None]) -> Any:
        row = request_class(ApiKey.LEAVE_GROUP).MemberIdentity
        rows = [row(member_id=member_id, group_instance_id=instance, reason=None) for member_id, instance in members]
        return self.ask(ApiKey.LEAVE_GROUP, group_id=self.group, members=rows)

    def commit(
        self,
        offset: int = 1,
        *,
        topic: str = "clicks",
        group: str | None = None,
        member: Any = None,
        metadata: str = "note",
        version: int = 9,
    ) -> int:
        values = commit_values(offset, self.group if group is None else group, topic=topic, member=member, metadata=metadata)
        answer = self.ask(ApiKey.OFFSET_COMMIT, version, **values)
        return int(answer.topics[0].partitions[0].error_code)

    def committed(self, topic: str = "clicks", group: str = "g") -> int:
        return int(self.committed_row(topic, group).committed_offset)

    def committed_row(self, topic: str = "clicks", group: str = "g") -> Any:
        return self.offsets_of(group, topic).topics[0].partitions[0]

    def offsets_of(self, group: str = "g", topic: str = "clicks") -> Any:
        """The group's row in an answer about one partition of the topic."""
        row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
        topics = [row.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        groups = [row(group_id=group, member_id=None, member_epoch=-1, topics=topics)]
        (answered,) = self.ask(ApiKey.OFFSET_FETCH, groups=groups, require_stable=True).groups
        return answered

    def describe(self, group: str = "g", version: int = 6) -> Any:
        (row,) = self.ask(ApiKey.DESCRIBE_GROUPS, version, groups=[group], include_authorized_operations=False).groups
        return row

    def listed(self, *, states: tuple[str, ...] = (), types: tuple[str, ...] = (), version: int = 5) -> dict[str, str]:
        rows = self.ask(ApiKey.LIST_GROUPS, version, states_filter=list(states), types_filter=list(types)).groups
        return {row.group_id: row.group_state for row in rows}

    def delete(self, *groups: str, version: int = 2) -> list[int]:
        return [row.error_code for row in self.ask(ApiKey.DELETE_GROUPS, version, groups_names=list(groups)).results]

    def delete_offset(self, topic: str, group: str = "g") -> tuple[int, list[int]]:
        row = request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic
        part = row.OffsetDeleteRequestPartition(partition_index=0)
        answer = self.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=[row(name=topic, partitions=[part])])
        return answer.error_code, [part.error_code for topic_row in answer.topics for part in topic_row.partitions]


class Client(GroupRequests):
    """Requests to the engine; a member's are answered after as many turns as it takes to write the group."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(self._ask)
        self.harness = harness

    def send(self, api_key: ApiKey, version: int | None = None, **values: Any) -> Any:
        """Returns the decoded answer, or a Pending if there is none yet."""
        version = APIS[api_key].last if version is None else version
        answer = self.harness.begin(api_key, version, **values)
        return answer if isinstance(answer, Pending) and not answer.done else self.read(answer, api_key, version)

    def _ask(self, api_key: ApiKey, version: int | None = None, **values: Any) -> Any:
        """Returns the decoded answer, after as many turns as it takes."""
        version = APIS[api_key].last if version is None else version
        return self.read(self.harness.begin(api_key, version, **values), api_key, version)

    def read(self, answer: Any, api_key: ApiKey, version: int | None = None) -> Any:
        version = APIS[api_key].last if version is None else version
        raw = self.harness.bytes_of(answer)
        read_response(api_key, version, raw)
        return response_class(api_key).decode(raw, version=version)

    def _send_as_member(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        answer = self.send(api_key, version, **values)
        if isinstance(answer, Pending):
            self.harness.settle()
        return self.read(answer, api_key, version) if isinstance(answer, Pending) and answer.done else answer

    def restart(self) -> None:
        """Stop the broker, and go on with another one in its directory."""
        config = self.harness.engine.config
        self.harness.settle()
        self.harness.close()
        self.harness = Harness(config.log_dirs, group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms)


def commit_values(offset: int, group: str, *, topic: str = "clicks", member: Any = None, metadata: str = "") -> dict[str, Any]:
    """The fields of an OffsetCommit of one partition."""
    row = request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic
    part = row.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
    )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1 if member is None else member.generation_id,
        "member_id": "" if member is None else member.member_id,
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [row(name=topic, partitions=[part])],
    }


def encode(api_key: ApiKey, version: int, values: dict[str, Any]) -> bytes:
    message = request_class(api_key)(**values)
    return bytes(message.encode(version=version))


def subscription(*topics: str) -> bytes:
    """A consumer's subscription: version, topics, user data."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def assignment(**topics: list[int]) -> bytes:
    """An assignment as the group's leader encodes it: version, topics with partitions, user data."""
    rows = b"".join(
        len(topic).to_bytes(2, "big")
        + topic.encode()
        + len(indexes).to_bytes(4, "big")
        + b"".join(index.to_bytes(4, "big") for index in indexes)
        for topic, indexes in topics.items()
    )
    return b"\0\1" + len(topics).to_bytes(4, "big") + rows + b"\xff\xff\xff\xff"
