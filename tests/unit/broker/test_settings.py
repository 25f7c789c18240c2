from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.cli import main
from logbus_broker.errors import ConfigError, InvalidConfig
from logbus_broker.properties import build_config, check_new_topic, load_config, parse_properties
from logbus_broker.setting_parsers import Listener
from logbus_broker.settings import BrokerConfig, LogConfig
from logbus_broker.settings_catalog import ConfigSource, describe_broker

CLUSTER = {"zookeeper.connect": "127.0.0.1:2181"}
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092"}
TLS = {"listeners": "SSL://127.0.0.1:9093", "ssl.keystore.location": "broker.pem"}
LOGINS = {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092"}
TWO_LISTENERS = {
    "listeners": "PLAINTEXT://0.0.0.0:9092,INTERNAL://10.0.0.7:9093",
    "advertised.listeners": "PLAINTEXT://broker.example:9092,INTERNAL://10.0.0.7:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}


def test_kafka_names_become_attributes_with_units() -> None:
    config = build_config({"broker.id": "7", "listeners": "PLAINTEXT://127.0.0.1:0", "log.segment.bytes": "1048576"})
    assert (config.broker_id, config.listeners, config.log.segment_bytes) == (7, (Listener(host="127.0.0.1", port=0),), 1048576)


def test_an_override_wins_over_the_file(tmp_path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a comment\nnum.partitions=3\nlog.retention.hours = 1\n")
    config = load_config(str(file), ["num.partitions=5"])
    assert config.num_partitions == 5
    assert config.log.retention_ms == 3_600_000


def test_a_leader_believes_in_itself_for_half_a_session_at_most() -> None:
    assert build_config({}).confirm_ms == 3_000
    assert build_config({"zookeeper.session.timeout.ms": "2000"}).confirm_ms == 1_000
    assert build_config({"logbus.leader.confirm.ms": "60000"}).confirm_ms == 3_000
    assert build_config({"logbus.leader.confirm.ms": "500"}).confirm_ms == 500


def test_the_finer_setting_wins_over_hours() -> None:
    assert build_config({"log.retention.hours": "1", "log.retention.ms": "5"}).log.retention_ms == 5
    assert build_config({"log.retention.hours": "-1"}).log.retention_ms == -1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"logbus.partition.max": "1"}, "unknown setting 'logbus.partition.max'; did you mean 'logbus.partitions.max'"),
        ({"ssl.client.auht": "required"}, "unknown setting 'ssl.client.auht'; did you mean 'ssl.client.auth'"),
        ({"security.inter.broker.protocol": "SSL"}, "inter.broker.listener.name=SSL"),
        ({"num.partitions": "many"}, "num.partitions=many: must be a whole number"),
        ({"num.partitions": "1_000"}, "num.partitions=1_000: must be a whole number"),
        ({"num.partitions": "+9"}, "must be a whole number"),
        ({"authorizer.class.name": "com.example.Mine"}, "must be org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ({"super.users": "ann"}, "must look like User:ann;User:bob"),
        ({"logbus.audit.log": "/tmp/a"}, "set authorizer.class.name too"),
        ({"num.partitions": "\uff11\uff12"}, "must be a whole number"),
        ({"num.partitions": "9" * 5_000}, "must be a whole number"),
        ({"log.retention.hours": "--1"}, "log.retention.hours=--1: must be a whole number"),
        ({"log.cleaner.min.cleanable.ratio": "0_0.5"}, "must be a number from 0 to 1"),
        ({"log.cleaner.min.cleanable.ratio": "nan"}, "must be a number from 0 to 1"),
        (CLUSTER | {"zookeeper.connect": "one:\uff12"}, "must look like"),
        ({"num.partitions": "0"}, "between 1"),
        (SASL | {"sasl.enabled.mechanisms": "GSSAPI"}, r"must be a list of PLAIN, .* \(there is no Kerberos\)"),
        (SASL | {"sasl.enabled.mechanisms": "PLAIN"}, "set logbus.allow.cleartext.passwords=true"),
        (
            SASL | {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER"},
            "no TLS: others could read the password",
        ),
        (
            SASL | {"sasl.enabled.mechanisms": "OAUTHBEARER", "logbus.allow.cleartext.passwords": "true"},
            "set sasl.oauthbearer.jwks.endpoint.url and sasl.oauthbearer.expected.issuer and sasl.oauthbearer.expected.audience",
        ),
        (SASL | {"sasl.oauthbearer.jwks.endpoint.url": "http://keys"}, "must begin with https:// or file://"),
        (SASL | {"listener.name.sasl_plaintext.plain.sasl.jaas.config": "x"}, "named in the file of logbus.users.file"),
        ({"listeners": "SSL://127.0.0.1:9093"}, "needs a certificate: set ssl.keystore.location"),
        (TLS | {"ssl.client.auth": "required"}, "has ssl.client.auth=required: set ssl.truststore.location"),
        (TLS | {"listener.name.ssl.ssl.client.auth": "requested"}, "has ssl.client.auth=requested: set ssl.truststore.location"),
        (TLS | {"listener.name.other.ssl.client.auth": "none"}, "listener.name.other.: OTHER is not one of the listeners SSL"),
        (TLS | {"listener.name.ssl.num.partitions": "1"}, "after listener.name.NAME. only these can be set: "),
        (
            TLS | {"listener.name.ssl.ssl.keystore.type": "JKS"},
            "listener.name.ssl.ssl.keystore.type=JKS: .*keytool -importkeystore",
        ),
        (TLS | {"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "must be TLSv1.2, TLSv1.3 or both"),
        (CLUSTER | TLS, "brokers verify each other's certificates at listener SSL .SSL.: set ssl.truststore.location"),
        (CLUSTER | LOGINS, "listener SASL_PLAINTEXT: set logbus.inter.broker.user and logbus.users.file"),
        (
            CLUSTER
            | LOGINS
            | {"logbus.inter.broker.user": "b", "logbus.users.file": "u", "sasl.enabled.mechanisms": "SCRAM-SHA-256"},
            "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512 is not one of listener SASL_PLAINTEXT's sasl.enabled.mechanisms",
        ),
        ({"listeners": "127.0.0.1:9092"}, "PLAINTEXT://"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"}, "two listeners the same name"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,INTERNAL://127.0.0.1:1"}, "two listeners the same port"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:1,INTERNAL://127.0.0.1:2"},
            "INTERNAL has no protocol: add INTERNAL:SSL or another to",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT:TLS"},
            "no protocol TLS for listener PLAINTEXT: it must be one of PLAINTEXT, SSL",
        ),
        ({"advertised.listeners": "OTHER://10.0.0.7:1"}, "advertised.listeners: OTHER is not one of the listeners"),
        (TWO_LISTENERS | {"advertised.listeners": "PLAINTEXT://10.0.0.7:1"}, "has no address for listener INTERNAL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners=.* is every interface"),
        ({"inter.broker.listener.name": "INTERNAL"}, "INTERNAL is not one of the listeners PLAINTEXT"),
        (CLUSTER | {"zookeeper.connect": "one:2181,two:port"}, "must look like host1:2181,host2:2181/chroot"),
        *((CLUSTER | {"zookeeper.connect": text}, "must look like") for text in ("/kafka", "a:2181,,b:2181", "[::1:2181")),
        *((CLUSTER | {"zookeeper.connect": f"a:2181/{path}"}, f"/{path} is not a path") for path in ("x//y", "x/../y", ".")),
        (
            {"default.replication.factor": "3"},
            "default.replication.factor=3 with one broker: more than one needs zookeeper.connect",
        ),
        ({"min.insync.replicas": "2"}, "min.insync.replicas=2 with one broker: more than one needs zookeeper.connect"),
        (CLUSTER | {"min.insync.replicas": "2"}, "more than default.replication.factor=1"),
        ({"zookeeper.set.acl": "true"}, "no identity in ZooKeeper: set logbus.zookeeper.auth.file, or zookeeper.ssl.keystore"),
        ({"zookeeper.ssl.truststore.location": "ca.pem"}, "has no effect without zookeeper.ssl.client.enable=true"),
        ({"num.replica.fetchers": "4"}, "must be 1: one loop reads from each leader"),
        ({"log.dirs": "/a,/b"}, "one directory"),
        ({"log.cleanup.policy": "shred"}, "must be delete, compact"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_config(values)


def test_names_that_are_no_settings_are_passed_over_with_a_warning_as_in_kafka() -> None:
    config = build_config({"num.network.threads": "3", "brokr.id": "1", "ssl.cipher.suites": "x", "broker.id": "7"})
    assert (config.broker_id, len(config.unknown_settings)) == (7, 3)
    assert config.unknown_settings[1] == "'brokr.id' is no setting of this broker, and has no effect; did you mean 'broker.id'?"
    assert build_config({"log.dir": "/a"}).log_dirs == Path("/a")
    assert build_config({"log.dir": "/a", "log.dirs": "/b"}).log_dirs == Path("/b")


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("5e-1", 0.5), (" 1. ", 1.0)])
def test_a_ratio_is_a_decimal_number(text: str, value: float) -> None:
    assert build_config({"log.cleaner.min.cleanable.ratio": text}).log.min_cleanable_dirty_ratio == value


def test_a_line_that_is_no_setting_is_named_with_its_number() -> None:
    with pytest.raises(ConfigError, match=r"server\.properties, line 2"):
        parse_properties("a=1\nnonsense\n", source="server.properties")


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load_config(str(tmp_path / "absent"), [])


def test_topic_overrides_use_the_topic_names() -> None:
    assert LogConfig().with_topic_overrides({"retention.ms": "-1"}).retention_ms == -1


def test_an_unknown_topic_override_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"unknown topic configuration 'retention\.seconds'"):
        LogConfig().with_topic_overrides({"retention.seconds": "1"})
    # Clients cut an error at 512 bytes: a suggestion helps more than a truncated list of all names.
    with pytest.raises(InvalidConfig, match=r"'retention\.mss'; did you mean 'retention\.ms'\?$"):
        LogConfig().with_topic_overrides({"retention.mss": "1"})


def test_the_default_listener_is_loopback() -> None:
    assert [listener.host for listener in BrokerConfig().listeners] == ["127.0.0.1"]


def test_each_listener_is_advertised_under_its_own_name() -> None:
    config = build_config(TWO_LISTENERS)
    told = {name: str(listener) for name, listener in config.advertised_at({}).items()}
    assert told == {"PLAINTEXT": "PLAINTEXT://broker.example:9092", "INTERNAL": "INTERNAL://10.0.0.7:9093"}
    assert config.inter_broker_listener == "INTERNAL"


def test_a_listeners_own_settings_come_before_those_of_all() -> None:
    listeners = {"listeners": "SSL://127.0.0.1:1,IN.SIDE://127.0.0.1:2", "listener.security.protocol.map": "IN.SIDE:SSL"}
    own = {"listener.name.in.side.ssl.client.auth": "required", "listener.name.in.side.ssl.truststore.location": "ca.pem"}
    config = build_config(TLS | listeners | own | {"ssl.key.password": "secret"})
    at = {listener.name: config.at_listener(listener.name) for listener in config.listeners}
    assert {name: settings.ssl_client_auth for name, settings in at.items()} == {"SSL": "none", "IN.SIDE": "required"}
    assert {settings.ssl_keystore_location for settings in at.values()} == {"broker.pem"}
    assert config.protocol_of("IN.SIDE").has_tls
    shown = {setting.name: setting for setting in describe_broker(config, ())}
    assert (shown["ssl.key.password"].value, shown["ssl.key.password"].source) == (None, ConfigSource.STATIC_BROKER)
    assert "secret" not in repr([setting.synonyms for setting in shown.values()])


def test_a_port_that_the_system_chose_is_advertised() -> None:
    config = build_config({"listeners": "PLAINTEXT://127.0.0.1:0"})
    assert config.advertised_at({"PLAINTEXT": 40_001})["PLAINTEXT"].port == 40_001


def test_other_brokers_use_the_listener_called_plaintext_unless_told() -> None:
    config = build_config(TWO_LISTENERS | {"inter.broker.listener.name": ""})
    assert config.inter_broker_listener == "PLAINTEXT"


def test_several_replicas_are_taken_with_zookeeper() -> None:
    config = build_config(CLUSTER | {"default.replication.factor": "3", "min.insync.replicas": "2"})
    assert (config.is_clustered, config.default_replication_factor, config.log.min_insync_replicas) == (True, 3, 2)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("zk1:2181, zk2:2182/kafka/", "zk1:2181,zk2:2182/kafka"),
        ("zk1", "zk1:2181"),
        ("[::1]:2181,[::1]", "[::1]:2181,[::1]:2181"),
        ("zk1:2181/", "zk1:2181"),
    ],
)
def test_zookeepers_servers_are_read_with_their_chroot(text: str, read: str) -> None:
    assert build_config(CLUSTER | {"zookeeper.connect": text}).zookeeper_connect == read


def test_a_topic_cannot_ask_for_more_in_sync_replicas_than_it_has() -> None:
    check_new_topic(LogConfig(min_insync_replicas=2), replication_factor=2)
    with pytest.raises(InvalidConfig, match="more than the topic's 1 replicas"):
        check_new_topic(LogConfig(min_insync_replicas=2), replication_factor=1)


def test_a_file_of_defaults_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    main(["settings"])
    assert build_config(parse_properties(capsys.readouterr().out, source="defaults")) == BrokerConfig()
