"""docs/protocol-support.md lists the versions each client uses with the broker. Here every client does a little of everything
through a proxy that records what it actually sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import ConfigResourceType as PyConfigResourceType
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import APIS, ApiKey

from tests.support.jvm_session import TOOLS, run_tools
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.protocol_page import claims
from tests.support.recording_proxy import RecordingProxy
from tests.support.secured_logbus import OPEN, PASSWORDS, SecuredLogbus, jvm_file, of_python


def done(futures: Mapping[object, object]) -> None:
    for future in futures.values():
        future.result(PATIENCE_SECONDS)  # type: ignore[attr-defined]


class Proxies(NamedTuple):
    """In front of the broker's listeners: without a login, and with one, as the administrator."""

    anonymous: RecordingProxy
    secured: RecordingProxy


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    with RecordingProxy() as anonymous, RecordingProxy() as secured:
        advertised = f"PLAINTEXT://127.0.0.1:{anonymous.port},SASL_PLAINTEXT://127.0.0.1:{secured.port}"
        settings = {"advertised.listeners": advertised, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
        settings |= {"super.users": "User:admin;User:ANONYMOUS"}
        with SecuredLogbus(tmp_path_factory.mktemp("broker"), settings=settings, listeners=(OPEN, "SASL_PLAINTEXT")) as broker:
            anonymous.target_port, secured.target_port = broker.port_of(OPEN), broker.port
            yield Proxies(anonymous, secured)


def as_admin(secured: str) -> dict[str, str]:
    """What librdkafka needs to log in."""
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin", "sasl.password": PASSWORDS["admin"]}
    return {"bootstrap.servers": secured, "security.protocol": "SASL_PLAINTEXT", **login}


def confluent_kafka(bootstrap: str, secured: str) -> None:
    admin, limit = AdminClient({"bootstrap.servers": bootstrap}), {"request_timeout": PATIENCE_SECONDS}
    topic, group = "of-confluent", "group-of-confluent"
    done(admin.create_topics([NewTopic(topic, 1)], **limit))
    done(admin.create_partitions([NewPartitions(topic, 2)], **limit))
    done(admin.describe_topics(TopicCollection([topic]), **limit))
    setting = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[setting])], **limit))
    done(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "-1"})], **limit))
    done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], **limit))
    admin.describe_cluster(**limit).result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 100}
    )
    consumer.subscribe([topic])
    assert consumer.poll(PATIENCE_SECONDS) is not None
    consumer.commit(asynchronous=False)
    consumer.seek(TopicPartition(topic, 0, 0, leader_epoch=0))
    consumer.poll(1.0)  # time for some heartbeats
    consumer.close()
    done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}, **limit))
    admin.list_consumer_groups(**limit).result(PATIENCE_SECONDS)
    done(admin.describe_consumer_groups([group], **limit))
    done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], **limit))
    done(admin.delete_consumer_groups([group], **limit))
    done(admin.delete_records([TopicPartition(topic, 0, 1)], **limit))
    done(admin.delete_topics([topic], **limit))
    logged_in = AdminClient(as_admin(secured))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    done(logged_in.alter_user_scram_credentials([UserScramCredentialUpsertion("ann", info, b"secret")], **limit))
    done(logged_in.describe_user_scram_credentials(["ann"], **limit))
    kind, pattern, everything = ResourceType.TOPIC, ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    acl = (kind, "clicks", pattern, "User:ann", "*", AclOperation.READ, everything)
    done(logged_in.create_acls([AclBinding(*acl)], **limit))
    logged_in.describe_acls(AclBindingFilter(*acl), **limit).result(PATIENCE_SECONDS)
    done(logged_in.delete_acls([AclBindingFilter(*acl)], **limit))


def kafka_python(bootstrap: str, secured: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    topic, group = "of-kafka-python", "group-of-kafka-python"
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.create_partitions({topic: 2})
    admin.describe_topics([topic])
    admin.describe_topic_partitions([topic])
    admin.alter_configs([PyConfigResource(PyConfigResourceType.TOPIC, topic, configs={"retention.ms": ("SET", "-1")})])
    admin.describe_configs([PyConfigResource(PyConfigResourceType.TOPIC, topic)])
    admin.describe_cluster()
    admin.describe_log_dirs()
    admin.list_config_resources(["TOPIC"])
    admin.list_partition_reassignments()
    admin.alter_partition_reassignments({PyTopicPartition(topic, 0): [0]})
    admin.elect_leaders(0, {topic: [0]})
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, b"x", partition=0).get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    next(consumer)
    consumer.commit()
    consumer.close()
    admin.list_groups()
    admin.describe_groups([group])
    admin.list_group_offsets([group])
    admin.delete_groups([group])
    admin.delete_records({PyTopicPartition(topic, 0): 1})
    admin.delete_topics([topic])
    admin.close()
    logged_in = KafkaAdminClient(**of_python(as_admin(secured)))
    logged_in.describe_user_scram_credentials()
    logged_in.close()


def aiokafka(bootstrap: str, secured: str) -> None:
    asyncio.run(asyncio.wait_for(_aiokafka(bootstrap, secured), PATIENCE_SECONDS))


async def _aiokafka(bootstrap: str, secured: str) -> None:
    topic, group = "of-aiokafka", "group-of-aiokafka"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([AioNewTopic(topic, 1, 1)])
    await admin.create_partitions({topic: AioNewPartitions(2)})
    await admin.alter_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic, configs={"retention.ms": "-1"})])
    await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic)])
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, b"x", partition=0)
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        await consumer.getone()
        await consumer.commit()
    await admin.list_consumer_groups()
    await admin.describe_consumer_groups([group])
    await admin.list_consumer_group_offsets(group)
    from aiokafka import TopicPartition as AioTopicPartition

    await admin.delete_records({AioTopicPartition(topic, 0): RecordsToDelete(before_offset=1)})
    await admin.delete_topics([topic])
    await admin.close()
    logged_in = AIOKafkaAdminClient(**of_python(as_admin(secured)))
    await logged_in.start()
    await logged_in.close()


def jvm_tools(bootstrap: str, secured: str) -> None:
    at, topic, group = ("--bootstrap-server", bootstrap), ("--topic", "of-jvm-tools"), ("--group", "group-of-jvm-tools")
    topics, configs = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand"
    groups, consumer = f"{TOOLS}.consumer.group.ConsumerGroupCommand", f"{TOOLS}.consumer.ConsoleConsumer"
    setting = ("--entity-type", "topics", "--entity-name", "of-jvm-tools", "--alter", "--add-config", "retention.ms=-1")
    acls, joe = f"{TOOLS}.AclCommand", ("--entity-type", "users", "--entity-name", "joe")
    grant = ("--allow-principal", "User:joe", "--producer", "--topic", "clicks")
    shape = ("--num-records", "10", "--record-size", "10", "--throughput", "-1", "--producer-props")
    with TemporaryDirectory() as directory:
        logged_in = ("--bootstrap-server", secured, "--command-config", jvm_file(as_admin(secured), Path(directory)))
        ran = run_tools(
            jvm_tools_or_skip(),
            [
                (topics, *at, "--create", *topic),
                (topics, *at, "--alter", *topic, "--partitions", "2"),
                (topics, *at, "--describe", *topic),
                (configs, *at, *setting),
                (configs, *at, "--entity-type", "brokers", "--describe"),
                (f"{TOOLS}.ProducerPerformance", *topic, *shape, f"bootstrap.servers={bootstrap}"),
                (consumer, *at, *topic, *group, "--from-beginning", "--max-messages", "10", "--timeout-ms", "600000"),
                (f"{TOOLS}.GetOffsetShell", *at, *topic),
                (groups, *at, "--list"),
                (groups, *at, *group, "--describe"),
                (groups, *at, *group, "--delete-offsets", *topic),
                (groups, *at, *group, "--delete"),
                (f"{TOOLS}.LogDirsCommand", *at, "--describe"),
                (f"{TOOLS}.ClientMetricsCommand", *at, "--list"),
                (configs, *logged_in, *joe, "--alter", "--add-config", "SCRAM-SHA-512=[password=x]"),
                (configs, *logged_in, *joe, "--alter", "--add-config", "producer_byte_rate=1048576"),
                (configs, *logged_in, *joe, "--describe"),
                (acls, *logged_in, "--add", *grant),
                (acls, *logged_in, "--list"),
                (acls, *logged_in, "--remove", "--force", *grant),
                (topics, *at, "--delete", *topic),
            ],
        )
    assert [one.status for one in ran] == [0] * len(ran), json.dumps(ran, indent=1)


SESSIONS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "JVM": jvm_tools,
}
AFTER_A_CRASH = {ApiKey.OFFSET_FOR_LEADER_EPOCH}  # sent when the leader epoch rises: tests/fault/broker/test_leader_epochs.py


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # AlterConfigs, which older tools still use
@pytest.mark.parametrize("client", SESSIONS)
def test_a_client_speaks_the_versions_that_the_page_says(proxies: Proxies, client: str) -> None:
    SESSIONS[client](*(f"127.0.0.1:{proxy.port}" for proxy in proxies))
    spoken = {(key, version) for proxy in proxies for key, versions in proxy.take().items() for version in versions}
    claimed = {(key, version) for key, version in claims()[client] if key not in AFTER_A_CRASH}
    assert claimed <= spoken, f"never sent: {sorted(claimed - spoken)}"
    assert {key for key, _ in spoken} <= APIS.keys(), "a client may ask only for what is offered"
    unnamed = {(key, version) for key, version in spoken - claimed if key != ApiKey.HEARTBEAT}  # heartbeats depend on timing
    assert unnamed == set(), "the page does not name these"


def test_every_key_is_proved_by_a_client() -> None:
    assert claims().keys() == SESSIONS.keys()
    assert {key for one in claims().values() for key, _ in one} == APIS.keys()
