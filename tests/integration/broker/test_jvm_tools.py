"""Apache Kafka's own command-line tools, where Java and Maven are installed. The admin tools run one after the other in one
process, on their own topic, and each test reads the output of one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
from logbus.kafka import client_config
from logbus.kafka.reassignments import ReassignmentFile
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.setting_parsers import AUTHORIZERS

from tests.support.broker import AnyBroker, LogbusBroker
from tests.support.jvm_session import TOOLS, Ran, run_tools
from tests.support.kafka_peer import JvmTools, jvm_tools_or_skip
from tests.support.logins import PASSWORD
from tests.support.tls_broker import TlsBroker
from tests.support.topics import admin

TOPICS, CONFIGS, ACLS = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand", f"{TOOLS}.AclCommand"
NAME = "of-the-jvm-tools"


@pytest.fixture(scope="module")
def tools() -> JvmTools:
    return jvm_tools_or_skip()


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, tuple[str, ...]]]:
    """What to run against a broker that asks for certificates, with them."""
    with TlsBroker(tmp_path_factory.mktemp("tls")) as secured:
        right, wrong = secured.login_settings(PASSWORD), secured.login_settings("wrong")
        sets = {"client": secured.java_settings(), "user": right, "guesser": wrong}
        client, user, guesser = (secured.directory / f"{name}.properties" for name in sets)
        for path, settings in zip((client, user, guesser), sets.values(), strict=True):
            path.write_text(client_config.properties(settings))
        by_login = ("--bootstrap-server", secured.logins, "--command-config")
        at, topic = ("--bootstrap-server", secured.tls, "--command-config", str(client)), ("--topic", NAME)
        performance = ("--num-records", "2000", "--record-size", "1000", "--throughput", "-1", "--producer.config", str(client))
        yield {
            "create over TLS": (TOPICS, *at, "--create", *topic, "--partitions", "1"),
            "produce over TLS": (
                f"{TOOLS}.ProducerPerformance",
                *topic,
                *performance,
                "--producer-props",
                f"bootstrap.servers={secured.tls}",
            ),
            "end over TLS": (f"{TOOLS}.GetOffsetShell", *at, *topic),
            "end with a password": (f"{TOOLS}.GetOffsetShell", *by_login, str(user), *topic),
            "end with a wrong password": (f"{TOOLS}.GetOffsetShell", *by_login, str(guesser), *topic),
        }


@pytest.fixture(scope="module")
def ran(
    tools: JvmTools,
    broker: AnyBroker,
    over_tls: Mapping[str, tuple[str, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Ran]:
    """The outcome of every admin tool run, by step."""
    at = ("--bootstrap-server", broker.bootstrap)
    node = str(min(admin(broker.bootstrap).list_topics(timeout=PATIENCE_SECONDS).brokers))
    offsets = tmp_path_factory.mktemp("tools") / "offsets.json"
    offsets.write_text(json.dumps({"version": 1, "partitions": [{"topic": NAME, "partition": 0, "offset": 3}]}))
    moves = offsets.with_name("moves.json")
    moves.write_text(ReassignmentFile(targets={(NAME, 0): (int(node),)}).to_json())
    reassign = (f"{TOOLS}.reassign.ReassignPartitionsCommand", *at, "--reassignment-json-file", str(moves))
    topic = ("--topic", NAME)
    of_topic, of_node = ("--entity-type", "topics", "--entity-name", NAME), ("--entity-type", "brokers", "--entity-name", node)
    of_all = ("--entity-type", "brokers", "--entity-default")
    performance = ("--num-records", "2000", "--record-size", "200", "--throughput", "-1", "--producer-props")
    idempotent = (f"bootstrap.servers={broker.bootstrap}", "acks=all", "enable.idempotence=true", "compression.type=lz4")
    asked: dict[str, tuple[str, ...]] = {
        "create": (TOPICS, *at, "--create", *topic, "--partitions", "1", "--config", "retention.ms=-1"),
        "create again": (TOPICS, *at, "--create", *topic, "--partitions", "1"),
        "create badly": (TOPICS, *at, "--create", "--topic", "other", "--config", "segment.bytes=many"),
        "list": (TOPICS, *at, "--list"),
        "produce": (f"{TOOLS}.ProducerPerformance", *topic, *performance, *idempotent),
        "end": (f"{TOOLS}.GetOffsetShell", *at, *topic),
        "delete records": (f"{TOOLS}.DeleteRecordsCommand", *at, "--offset-json-file", str(offsets)),
        "earliest": (f"{TOOLS}.GetOffsetShell", *at, *topic, "--time", "earliest"),
        "alter": (TOPICS, *at, "--alter", *topic, "--partitions", "3"),
        "shrink": (TOPICS, *at, "--alter", *topic, "--partitions", "2"),
        "describe": (TOPICS, *at, "--describe", *topic),
        "set": (CONFIGS, *at, *of_topic, "--alter", "--add-config", "segment.bytes=2097152,max.message.bytes=5000"),
        "set badly": (CONFIGS, *at, *of_topic, "--alter", "--add-config", "segment.bytes=many"),
        "unset": (CONFIGS, *at, *of_topic, "--alter", "--delete-config", "retention.ms"),
        "configs": (CONFIGS, *at, *of_topic, "--describe"),
        "set broker": (CONFIGS, *at, *of_node, "--alter", "--add-config", "log.retention.ms=1000000"),
        "set all brokers": (CONFIGS, *at, *of_all, "--alter", "--add-config", "log.segment.bytes=3145728"),
        "brokers": (CONFIGS, *at, "--entity-type", "brokers", "--describe"),
        "all of the broker": (CONFIGS, *at, *of_node, "--describe", "--all"),
        "all of the topic": (CONFIGS, *at, *of_topic, "--describe", "--all"),
        "unset broker": (CONFIGS, *at, *of_node, "--alter", "--delete-config", "log.retention.ms"),
        "unset all brokers": (CONFIGS, *at, *of_all, "--alter", "--delete-config", "log.segment.bytes"),
        "log dirs": (f"{TOOLS}.LogDirsCommand", *at, "--describe", "--topic-list", NAME),
        "reassign": (*reassign, "--execute"),
        "reassigned": (*reassign, "--verify"),
        "delete": (TOPICS, *at, "--delete", *topic),
        "acls without": (ACLS, *at, "--list"),
        "list after": (TOPICS, *at, "--list"),
    }
    settings = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS"}
    with LogbusBroker(tmp_path_factory.mktemp("authorizing"), settings=settings) as authorizing:
        at = ("--bootstrap-server", authorizing.bootstrap)
        prefixed, ann = ("--topic", "web.", "--resource-pattern-type", "prefixed"), ("--allow-principal", "User:ann")
        asked |= {
            "add acls": (ACLS, *at, "--add", *ann, "--consumer", "--group", "loads", *prefixed),
            "list acls": (ACLS, *at, "--list", "--topic", "web.access", "--resource-pattern-type", "match"),
            "remove acls": (ACLS, *at, "--remove", *ann, "--operation", "Read", *prefixed, "--force"),
            "list acls after": (ACLS, *at, "--list"),
        }
        asked |= over_tls
        return dict(zip(asked, run_tools(tools, list(asked.values())), strict=True))


def test_a_topic_is_made_listed_and_deleted(ran: Mapping[str, Ran]) -> None:
    assert ran["create"].status == 0, ran["create"].output
    assert NAME in ran["list"].output.split()
    assert ran["delete"].status == 0, ran["delete"].output
    assert NAME not in ran["list after"].output.split()


def test_a_topic_that_cannot_be_made_is_refused(ran: Mapping[str, Ran]) -> None:
    assert ran["create again"].status == 1
    assert "TopicExistsException" in ran["create again"].output
    assert ran["create badly"].status == 1
    assert "nvalid value many for configuration segment.bytes" in ran["create badly"].output  # checked in the tool


def test_a_topic_grows_and_does_not_shrink(ran: Mapping[str, Ran]) -> None:
    assert ran["alter"].status == 0, ran["alter"].output
    assert "PartitionCount: 3" in ran["describe"].output
    assert "retention.ms=-1" in ran["describe"].output
    assert (ran["shrink"].status, "InvalidPartitionsException" in ran["shrink"].output) == (1, True)


def test_records_produced_idempotently_are_counted_and_deleted(ran: Mapping[str, Ran]) -> None:
    assert ran["produce"].output.startswith("2000 records sent"), ran["produce"].output
    assert ran["end"].output == f"{NAME}:0:2000"
    assert "low_watermark: 3" in ran["delete records"].output
    assert ran["earliest"].output == f"{NAME}:0:3"


def test_a_file_of_moves_is_taken_and_theirs_is_read(ran: Mapping[str, Ran]) -> None:
    shown, done = ran["reassign"].output, ran["reassigned"].output
    assert f"Successfully started partition reassignment for {NAME}-0" in shown
    assert f"Reassignment of partition {NAME}-0 is completed." in done
    (theirs,) = (line for line in shown.splitlines() if line.startswith("{"))
    assert list(ReassignmentFile.from_json(theirs).targets) == [(NAME, 0)]


def test_a_topics_settings_are_changed_and_shown_with_their_sources(ran: Mapping[str, Ran]) -> None:
    assert (ran["set"].status, ran["unset"].status) == (0, 0), ran["set"].output + ran["unset"].output
    shown = ran["configs"].output
    assert "segment.bytes=2097152" in shown
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000, DEFAULT_CONFIG:message.max.bytes=1048588" in shown
    assert "retention.ms" not in shown
    assert (ran["set badly"].status, "InvalidConfigurationException" in ran["set badly"].output) == (1, True)


def test_brokers_settings_are_changed_and_shown_with_their_sources(ran: Mapping[str, Ran]) -> None:
    assert (ran["set broker"].status, ran["set all brokers"].status) == (0, 0)
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=1000000" in ran["brokers"].output
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=3145728" in ran["brokers"].output
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=3145728, " in ran["all of the broker"].output
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=1000000, " in ran["all of the topic"].output
    assert (ran["unset broker"].status, ran["unset all brokers"].status) == (0, 0)


def test_the_size_of_every_partition_is_told(ran: Mapping[str, Ran]) -> None:
    answer = json.loads(ran["log dirs"].output.splitlines()[-1])
    (directory,) = answer["brokers"][0]["logDirs"]
    sizes = {row["partition"]: row["size"] for row in directory["partitions"]}
    assert sizes.keys() == {f"{NAME}-{index}" for index in range(3)}
    assert sizes[f"{NAME}-0"] > 0


def test_java_speaks_tls_with_a_certificate_of_its_own(ran: Mapping[str, Ran]) -> None:
    assert ran["create over TLS"].status == 0, ran["create over TLS"].output
    assert "2000 records sent" in ran["produce over TLS"].output, ran["produce over TLS"].output
    assert ran["end over TLS"].output == ran["end with a password"].output == f"{NAME}:0:2000"
    assert ran["end with a wrong password"].status != 0
    assert "Authentication failed" in ran["end with a wrong password"].output


def test_acls_are_added_listed_and_removed(ran: Mapping[str, Ran]) -> None:
    assert {ran[step].status for step in ("add acls", "list acls", "remove acls")} == {0}, ran["add acls"].output
    read = "(principal=User:ann, host=*, operation=READ, permissionType=ALLOW)"
    describe = read.replace("READ", "DESCRIBE")
    shown = ran["list acls"].output
    assert "resourceType=TOPIC, name=web., patternType=PREFIXED" in shown
    assert (read in shown, describe in shown) == (True, True)
    resources = ran["list acls after"].output.split("Current ACLs")  # in any order
    (after,) = (acls for acls in resources if "resourceType=TOPIC" in acls)
    assert (read in after, describe in after) == (False, True)
    assert "SecurityDisabledException" in ran["acls without"].output


def test_the_console_tools_produce_idempotently_and_consume_by_assignment(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    lines = [f"line {number}" for number in range(500)]
    tools.console_produce(broker.bootstrap, topic, lines, "acks=all", "enable.idempotence=true", "compression.type=zstd")
    assert tools.console_consume(broker.bootstrap, topic, partition=0, count=500) == lines


def test_the_verifiable_producer_has_every_record_acknowledged(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    counts = ("--max-messages", "1000", "--throughput", "-1", "--acks", "-1")
    output = tools.run(f"{TOOLS}.VerifiableProducer", "--bootstrap-server", broker.bootstrap, "--topic", topic, *counts)
    summary = json.loads(output.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (1000, 1000)
