"""A schema registry as a process, on a real broker, asked by Confluent's own client and serializers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import (
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import ConfigCompatibilityLevel
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.peers.java import FAST_START
from benchmarks.peers.maven import Jars, Missing, java, javac
from tests.support.avro_values import record
from tests.support.broker import AnyBroker
from tests.support.jvm_session import PROGRAMS
from tests.support.programs import built
from tests.support.registries import running_registry
from tests.support.restoring import RestorableBroker, restorable  # noqa: F401
from tests.support.topics import read_partition

NAME = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
WITH_AGE = NAME.replace("}]}", '},{"name":"age","type":"int","default":0}]}')
OBJECT = '{"title":"User","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'


@pytest.fixture(scope="module")
def url(broker: AnyBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry"), broker.bootstrap) as (_, address):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url, "max.retries": 0}) as client:
        yield client


def refused(code: int, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(SchemaRegistryError) as refusal:
        call(*arguments, **options)
    assert refusal.value.error_code == code


def test_every_method_of_confluents_client(client: SchemaRegistryClient) -> None:
    avro, wider = Schema(NAME, "AVRO"), Schema(WITH_AGE, "AVRO")
    first = client.register_schema("users", avro)
    second = client.register_schema_full_response("users", wider, normalize_schemas=True)
    assert (second.schema_id, second.version) == (first + 1, 2)
    assert client.get_schema(first).schema_str == NAME
    guid = client.get_version("users", 1).guid
    assert client.get_schema_by_guid(guid).schema_str == NAME
    assert client.get_schema_types() == ["JSON", "PROTOBUF", "AVRO"]
    assert client.get_subjects_by_schema_id(first) == ["users"]
    assert [(each.subject, each.version) for each in client.get_schema_versions(first)] == [("users", 1)]
    assert client.lookup_schema("users", avro).version == 1
    assert "users" in client.get_subjects()
    assert client.get_latest_version("users").version == 2
    assert client.get_versions("users") == [1, 2]
    assert client.set_compatibility("users", "FULL") == {"compatibility": "FULL"}
    assert client.get_compatibility("users") == "FULL"
    assert client.set_config("users", ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD)) == {
        "compatibility": "BACKWARD"
    }
    assert client.get_config("users").compatibility_level == "BACKWARD"
    assert client.test_compatibility("users", avro)
    assert not client.test_compatibility("users", Schema('"int"', "AVRO"))
    assert client.test_compatibility_all_versions("users", wider)
    assert client.delete_config("users").compatibility_level == "BACKWARD"
    refused(40408, client.get_config, "users")
    assert client.update_mode("users", "READONLY") == "READONLY"
    assert client.get_mode("users") == "READONLY"
    assert client.delete_mode("users") == "READONLY"
    assert client.get_global_mode() == "READWRITE"
    assert client.update_global_mode("READWRITE") == "READWRITE"
    assert client.get_contexts() == ["."]
    owned = Schema('"bytes"', "AVRO", metadata=Metadata(tags=None, properties=MetadataProperties({"owner": "a"}), sensitive=None))
    client.register_schema("owned", owned)
    assert client.get_latest_with_metadata("owned", {"owner": "a"}).version == 1
    inner = SchemaReference("User", "users", 2)
    refers = client.register_schema("lists", Schema('{"type":"array","items":"User"}', "AVRO", references=[inner]))
    assert client.get_referenced_by("users", 2) == [refers]
    refused(42206, client.delete_version, "users", 2)
    assert client.delete_version("users", 1) == 1
    assert client.delete_version("users", 1, permanent=True) == 1
    assert client.delete_subject("lists") == [1]
    assert client.delete_subject("users") == [2]
    assert client.delete_subject("users", permanent=True) == [2]
    refused(40401, client.get_versions, "users")
    refused(409, client.register_schema, "owned", Schema('"int"', "AVRO"))


def protobuf_user() -> Any:
    """A message class, as protoc's output would have it."""
    file = descriptor_pb2.FileDescriptorProto(name="user.proto", package="logbus.test", syntax="proto3")
    file.message_type.add(name="User").field.add(name="name", number=1, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logbus.test.User"))


@pytest.mark.parametrize("by_header", [False, True])
def test_confluents_serializers_for_each_type(client: SchemaRegistryClient, by_header: bool) -> None:
    settings = {"schema.id.serializer": header_schema_id_serializer} if by_header else None
    topic = f"serialized-{by_header}".lower()
    user = protobuf_user()
    ann = {"name": "ann of the long name"}
    pairs = [
        (AvroSerializer(client, NAME, conf=settings), AvroDeserializer(client), ann),
        (JSONSerializer(OBJECT, client, conf=settings), JSONDeserializer(None, schema_registry_client=client), ann),
        (ProtobufSerializer(user, client, conf=settings), ProtobufDeserializer(user, schema_registry_client=client), user(**ann)),
    ]
    for number, (serialize, deserialize, value) in enumerate(pairs):
        headers: list[tuple[str, bytes]] = []
        context = SerializationContext(f"{topic}-{number}", MessageField.VALUE, headers)
        assert deserialize(serialize(value, context), context) == value


def test_a_killed_registry_knows_everything_again(broker: AnyBroker, tmp_path: Path) -> None:
    topic = "_schemas_killed"
    with running_registry(tmp_path, broker.bootstrap, "--topic", topic) as (process, url):
        client = SchemaRegistryClient({"url": url})
        fixed = [Schema(json.dumps({"type": "fixed", "name": "F", "size": 1 + n}), "AVRO") for n in range(5)]
        ids = [client.register_schema(f"s{n}", schema) for n, schema in enumerate(fixed)]
        client.delete_subject("s4")
        client.delete_subject("s4", permanent=True)
        process.kill()
    with running_registry(tmp_path, broker.bootstrap, "--topic", topic) as (_, url):
        client = SchemaRegistryClient({"url": url})
        assert client.get_subjects() == ["s0", "s1", "s2", "s3"]
        assert [client.get_version(f"s{n}", 1).schema_id for n in range(4)] == ids[:4]
        assert client.register_schema("again", Schema('"int"', "AVRO")) == ids[4] + 1  # not the deleted one's


def test_of_two_registries_the_one_that_wrote_last_writes(broker: AnyBroker, tmp_path: Path) -> None:
    first_home, second_home = tmp_path / "first", tmp_path / "second"
    first_home.mkdir()
    second_home.mkdir()
    options = ("--topic", "_schemas_two")
    with (
        running_registry(first_home, broker.bootstrap, *options) as (_, first_url),
        running_registry(second_home, broker.bootstrap, *options) as (_, second_url),
    ):
        first, second = (SchemaRegistryClient({"url": address, "max.retries": 0}) for address in (first_url, second_url))
        assert first.register_schema("a", Schema('"int"', "AVRO")) == 1
        assert second.register_schema("b", Schema('"long"', "AVRO")) == 2
        refused(50004, first.register_schema, "c", Schema('"float"', "AVRO"))
        assert second.register_schema("d", Schema('"int"', "AVRO")) == 1
        assert first.get_schema(2).schema_str == '"long"'


def test_a_topic_that_was_cut_is_read_again_and_no_id_is_given_out_twice(
    restorable: RestorableBroker,  # noqa: F811
    tmp_path: Path,
) -> None:
    fixed = [Schema(json.dumps({"type": "fixed", "name": "F", "size": 1 + n}), "AVRO") for n in range(4)]
    with running_registry(tmp_path, restorable.server.bootstrap) as (_, url):
        with SchemaRegistryClient({"url": url}) as client:
            assert client.register_schema("kept", fixed[0]) == 1
            restorable.back_up()
            assert wait_until(lambda: client.register_schema("lost", fixed[1]), what="a write", not_yet=SchemaRegistryError) == 2
            restorable.restore()
        with SchemaRegistryClient({"url": url, "max.retries": 0}) as client:
            wait_until(lambda: client.get_subjects() == ["kept"], what="what is left", not_yet=SchemaRegistryError)
            refused(40401, client.get_versions, "lost")
            assert wait_until(lambda: client.register_schema("next", fixed[2]), what="a write", not_yet=SchemaRegistryError) == 3
            assert client.register_schema("lost", fixed[1]) == 4
            assert client.get_subjects() == ["kept", "lost", "next"]


def test_the_topic_is_in_confluents_layout(broker: AnyBroker, client: SchemaRegistryClient) -> None:
    client.register_schema("layout", Schema('"int"', "AVRO"))
    messages: list[Message] = read_partition(broker.bootstrap, "_schemas")
    by_key = {message.key(): message.value() for message in messages}
    value = json.loads(by_key[b'{"keytype":"SCHEMA","subject":"layout","version":1,"magic":1}'] or b"")
    assert list(value) == ["subject", "version", "id", "schema", "deleted"]
    assert b'{"keytype":"NOOP","magic":0}' in by_key


# Confluent's own Java client (7.5), from the one jar of Maven's central repository that carries it.
JAVA_CLIENT = Jars(
    name="flink-sql-avro-confluent-registry-1.20.0",
    artifacts=("org.apache.flink:flink-sql-avro-confluent-registry:1.20.0", "org.slf4j:slf4j-nop:1.7.36"),
)
COFFEE, COFFEE_WITH_AGE = NAME.replace("User", "Coffee"), WITH_AGE.replace("User", "Coffee")  # of no other test: ids are of all
JAVA_ANSWERS = f"""\
getAllVersions refused 404 40401
register true
register 1
register refused 409 409
getSchemaById {COFFEE}
getSchemaBySubjectAndId {COFFEE}
getSchemaById refused 404 40403
getId 1
getVersion 2
getVersion refused 404 40403
getAllSubjects true
getAllSubjectsByPrefix [java]
getAllSubjectsById true
getAllVersionsById 1
getAllVersions [1, 2]
getLatestSchemaMetadata 2
getSchemaMetadata {COFFEE}
getSchemaMetadata refused 404 40402
getSchemas 1
testCompatibility [true, false]
testCompatibilityVerbose false
getCompatibility refused 404 40408
updateCompatibility FULL_TRANSITIVE
updateCompatibility refused 422 42203
getConfig FULL_TRANSITIVE
deleteCompatibility done
getMode READWRITE
setMode READONLY
getMode READONLY
register refused 422 42205
deleteMode done
deleteSchemaVersion refused 404 40407
deleteSchemaVersion 1
deleteSchemaVersion 1
deleteSubject refused 404 40405
deleteSubject [2]
deleteSubject [2]
deleteSubject refused 404 40401
"""


def test_every_method_of_confluents_java_client(url: str) -> None:
    try:
        command = [javac() and java(), *FAST_START, "-cp", JAVA_CLIENT.class_path(), str(PROGRAMS / "AskRegistry.java")]
    except Missing as missing:
        pytest.skip(str(missing))
    arguments = [url, "java", COFFEE, COFFEE_WITH_AGE, json.dumps(record(("name", "long"), name="Coffee"))]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stdout == JAVA_ANSWERS, done.stderr


@pytest.mark.long
def test_a_client_in_go_registers_and_looks_up(url: str) -> None:
    texts = [NAME, WITH_AGE]
    environment = {**os.environ, "SETTINGS": "{}", "REGISTRY": url, "TOPIC": "gophers"}
    done = subprocess.run(
        [f"{built('go_clients').name}/go_clients", "registry"],
        input="\n".join(texts),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *stored, figures = done.stdout.splitlines()
    assert (stored, json.loads(figures)) == (texts, {"versions": [1, 2], "compatible": False, "deleted": [1, 2]})
