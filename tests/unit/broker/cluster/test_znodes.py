"""The bytes of znodes: samples that Apache Kafka wrote can be read, and our own keys are added next to Kafka's."""

from __future__ import annotations

import json
import uuid

import pytest
from logbus_broker.cluster import security_store, znodes
from logbus_broker.cluster.metadata_image import BrokerNode, Endpoint, PartitionState, Security, TopicNode
from logbus_broker.cluster.znodes import ProducerIdBlock
from logbus_broker.errors import MalformedNode
from logbus_broker.security import state as security_state

TOPIC_ID = uuid.UUID("0102030405060708090a0b0c0d0e0f10")


def test_a_state_that_kafka_wrote_is_read() -> None:
    data = b'{"controller_epoch":7,"leader":2,"version":1,"leader_epoch":5,"isr":[2,3]}'
    assert znodes.decode_state(data, 9) == PartitionState(leader=2, leader_epoch=5, isr=(2, 3), version=9, controller_epoch=7)


def test_a_state_after_an_unclean_election_is_read() -> None:
    data = b'{"controller_epoch":7,"leader":2,"version":1,"leader_epoch":5,"isr":[2],"leader_recovery_state":1}'
    assert znodes.decode_state(data, 0).is_recovering


def test_a_state_has_kafkas_keys_and_ours_only_where_they_say_something() -> None:
    state = PartitionState(leader=1, leader_epoch=4, isr=(1, 2), version=3, controller_epoch=6)
    kafkas = {"controller_epoch": 6, "leader": 1, "version": 1, "leader_epoch": 4, "isr": [1, 2]}
    assert json.loads(znodes.encode_state(state)) == kafkas
    state = PartitionState(
        leader=1, leader_epoch=4, isr=(1,), version=3, controller_epoch=6, eligible=(2,), handover_to=0, is_recovering=True
    )
    ours = {"elr": [2], "handover_to": 0, "leader_recovery_state": 1}
    assert json.loads(znodes.encode_state(state)) == {**kafkas, "isr": [1], **ours}


def test_a_topic_that_kafka_wrote_is_read() -> None:
    data = (
        b'{"removing_replicas":{"1":[3]},"partitions":{"1":[2,3,1],"0":[1,2],"10":[1],"9":[1],"8":[1],"7":[1],"6":[1],"5":[1],'
        b'"4":[1],"3":[1],"2":[1]},"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","adding_replicas":{"1":[1]},"version":3}'
    )
    expected = TopicNode(
        name="access",
        topic_id=TOPIC_ID,
        replicas=((1, 2), (2, 3, 1), *((1,),) * 9),
        version=4,
        adding={1: (1,)},
        removing={1: (3,)},
    )
    assert znodes.decode_topic("access", data, 4) == expected


def test_a_topic_from_before_topic_ids_is_refused_by_name() -> None:
    with pytest.raises(MalformedNode, match="'access'.*topic_id"):
        znodes.decode_topic("access", b'{"version":1,"partitions":{"0":[1]}}', 0)


def test_a_broker_that_kafka_registered_is_read_and_has_no_incarnation() -> None:
    data = (
        b'{"features":{},"listener_security_protocol_map":{"CLIENT":"SSL","PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["CLIENT://kafka-1.example.com:9093","PLAINTEXT://[fd00::1]:9092"],"jmx_port":-1,"port":9092,'
        b'"host":"fd00::1","version":5,"timestamp":"1718000000000","rack":"a"}'
    )
    endpoints = {
        "CLIENT": Endpoint(host="kafka-1.example.com", port=9093, security_protocol="SSL"),
        "PLAINTEXT": Endpoint(host="fd00::1", port=9092),
    }
    assert znodes.decode_broker(3, data) == BrokerNode(broker_id=3, incarnation=-1, endpoints=endpoints, rack="a")


def test_a_broker_names_its_plaintext_listener_where_old_tools_look() -> None:
    node = BrokerNode(broker_id=1, incarnation=2, endpoints={"PLAINTEXT": Endpoint(host="::1", port=9092)}, directory_id="d")
    row = json.loads(znodes.encode_broker(node, 1718000000000))
    assert (row["host"], row["port"], row["endpoints"]) == ("::1", 9092, ["PLAINTEXT://[::1]:9092"])
    assert (row["version"], row["timestamp"], row["jmx_port"]) == (5, "1718000000000", -1)


def test_small_nodes_are_as_kafka_writes_them() -> None:
    assert znodes.decode_controller(b'{"version":2,"brokerid":4,"timestamp":"1718000000000","kraftControllerEpoch":-1}') == 4
    assert znodes.decode_controller(b'{"version":1,"brokerid":4,"timestamp":"1718000000000"}') == 4
    assert znodes.decode_controller_epoch(b"17") == 17
    assert znodes.decode_cluster_id(b'{"version":"1","id":"nCFSVjBpQr2lDU5CJMm3vA"}') == "nCFSVjBpQr2lDU5CJMm3vA"
    block = ProducerIdBlock(broker_id=2, start=3000, end=4000)
    kafkas = b'{"version":1,"broker":2,"block_start":"3000","block_end":"3999"}'
    assert znodes.decode_producer_id_block(kafkas) == block
    assert znodes.encode_producer_id_block(block) == kafkas
    settings = znodes.decode_settings(b'{"version":1,"config":{"retention.ms":"1000"}}', 5)
    assert (settings.values, settings.version) == ({"retention.ms": "1000"}, 5)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"leader":1}', b"\xff", b'{"isr":3}'])
def test_bytes_that_nobody_of_us_wrote_are_named_and_refused(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="a partition's state in ZooKeeper cannot be read"):
        znodes.decode_state(data, 0)
    for decode in (znodes.decode_controller, znodes.decode_cluster_id, znodes.decode_producer_id_block):
        with pytest.raises(MalformedNode):
            decode(data)


KAFKAS_SECURITY = {
    "/config/users/ann": b'{"version":1,"config":{"SCRAM-SHA-512":"salt=AHNhbHQ=,stored_key=c3RvcmVk/w==,server_key=c2VydmVy,'
    b'iterations=4096","producer_byte_rate":"1024.0"}}',
    "/config/clients/<default>": b'{"version":1,"config":{"request_percentage":"50.5"}}',
    "/kafka-acl/Cluster/kafka-cluster": b'{"version":1,"acls":[{"principal":"User:ann","permissionType":"Allow",'
    b'"operation":"ClusterAction","host":"*"}]}',
    "/kafka-acl-extended/prefixed/TransactionalId/web%2F": b'{"version":1,"acls":[{"principal":"User:*",'
    b'"permissionType":"Deny","operation":"Write","host":"10.0.0.1"}]}',
}


def test_users_acls_and_quotas_are_where_and_as_kafka_keeps_them() -> None:
    security = Security().after(0, {path: znodes.decode_security(path, data) for path, data in KAFKAS_SECURITY.items()})
    credential = security_state.ScramCredential(salt=b"\0salt", iterations=4096, stored_key=b"stored\xff", server_key=b"server")
    assert security.state.credentials == {("ann", security_state.ScramMechanism.SCRAM_SHA_512): credential}
    assert security.state.quotas == {
        frozenset({("user", "ann")}): {"producer_byte_rate": 1024.0},
        frozenset({("client-id", None)}): {"request_percentage": 50.5},
    }
    assert {
        (acl.resource_type.name, acl.pattern_type.name, acl.resource_name, acl.operation.name, acl.permission.name)
        for acl in (security.state.acls)
    } == {
        ("CLUSTER", "LITERAL", "kafka-cluster", "CLUSTER_ACTION", "ALLOW"),
        ("TRANSACTIONAL_ID", "PREFIXED", "web/", "WRITE", "DENY"),
    }
    written = security_store.by_znode(security.state)
    assert {path: znodes.encode_security(path, content) for path, content in written.items()} == KAFKAS_SECURITY
    with pytest.raises(MalformedNode, match="/kafka-acl/Topic/web in ZooKeeper cannot be read: ValueError: unknown: 'Fly'"):
        znodes.decode_security(
            "/kafka-acl/Topic/web", KAFKAS_SECURITY["/kafka-acl/Cluster/kafka-cluster"].replace(b"ClusterAction", b"Fly")
        )


def test_parents_come_before_their_children_among_the_base_paths() -> None:
    paths: list[str] = [""]
    for path in znodes.BASE_PATHS:
        assert path.rpartition("/")[0] in paths
        paths.append(path)
