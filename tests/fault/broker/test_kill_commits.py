"""kill -9 of the broker while offsets are being committed: the last acknowledged offset is found again, never an older one."""

from __future__ import annotations

import random
from pathlib import Path

from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class

from tests.support.broker import LogbusBroker
from tests.support.raw_client import RawClient
from tests.support.topics import create_topic

ROUNDS = 6
VERSION = 8


def commit_body(offset: int) -> bytes:
    row = request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic
    part = row.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=f"number {offset}"
    )
    return encode(
        ApiKey.OFFSET_COMMIT,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[row(name="clicks", partitions=[part])],
    )


def encode(api_key: ApiKey, **values: object) -> bytes:
    message = request_class(api_key)(**values)
    return bytes(message.encode(version=VERSION))


def commit(client: RawClient, offset: int) -> None:
    answer = client.request(ApiKey.OFFSET_COMMIT, VERSION, commit_body(offset), flexible=True)
    (topic,) = response_class(ApiKey.OFFSET_COMMIT).decode(answer, version=VERSION).topics
    assert [part.error_code for part in topic.partitions] == [0]


def committed(client: RawClient) -> tuple[int, str]:
    row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    asked = row(group_id="g", topics=[row.OffsetFetchRequestTopics(name="clicks", partition_indexes=[0])])
    body = encode(ApiKey.OFFSET_FETCH, groups=[asked], require_stable=False)
    answer = client.request(ApiKey.OFFSET_FETCH, VERSION, body, flexible=True)
    (group,) = response_class(ApiKey.OFFSET_FETCH).decode(answer, version=VERSION).groups
    part = group.topics[0].partitions[0]
    return part.committed_offset, part.metadata


def test_an_acknowledged_commit_survives_and_never_goes_back(tmp_path: Path) -> None:
    chance = random.Random(2011)
    sent = 0
    with LogbusBroker(tmp_path, settings={"log.segment.bytes": "4000"}) as broker:  # so that kills hit rolls too
        create_topic(broker.bootstrap, "clicks")
        for _ in range(ROUNDS):
            with RawClient(broker.bootstrap) as client:
                acknowledged = sent + chance.randint(1, 200)
                for number in range(sent + 1, acknowledged + 1):
                    commit(client, number)
                sent = acknowledged + chance.randint(1, 5)
                for number in range(acknowledged + 1, sent + 1):  # their outcome stays unknown
                    client.send_request(ApiKey.OFFSET_COMMIT, VERSION, commit_body(number), flexible=True)
                broker.kill9()
            broker.start()
            with RawClient(broker.bootstrap) as client:
                offset, metadata = committed(client)
            assert acknowledged <= offset <= sent
            assert metadata == f"number {offset}"
