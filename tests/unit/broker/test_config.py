from __future__ import annotations

import pytest

from broker.config import BrokerConfig, Listener, LogConfig
from broker.config_file import build_config, load_config, parse_properties
from broker.errors import ConfigError, InvalidConfig


def test_kafka_names_become_attributes_with_units() -> None:
    config = build_config({"broker.id": "7", "listeners": "PLAINTEXT://127.0.0.1:0", "log.segment.bytes": "1048576"})
    assert (config.broker_id, config.listeners, config.log.segment_bytes) == (7, Listener(host="127.0.0.1", port=0), 1048576)


def test_an_override_wins_over_the_file(tmp_path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a comment\nnum.partitions=3\nlog.retention.hours = 1\n")
    config = load_config(str(file), ["num.partitions=5"])
    assert config.num_partitions == 5
    assert config.log.retention_ms == 3_600_000


def test_the_finer_setting_wins_over_hours() -> None:
    assert build_config({"log.retention.hours": "1", "log.retention.ms": "5"}).log.retention_ms == 5
    assert build_config({"log.retention.hours": "-1"}).log.retention_ms == -1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"brokr.id": "1"}, "did you mean 'broker.id'"),
        ({"num.partitions": "many"}, "num.partitions=many: must be a whole number"),
        ({"num.partitions": "0"}, "between 1"),
        ({"listeners": "SSL://127.0.0.1:9093"}, "SSL is not offered"),
        ({"listeners": "127.0.0.1:9092"}, "PLAINTEXT://"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners"),
        ({"log.dirs": "/a,/b"}, "one directory"),
        ({"log.cleanup.policy": "shred"}, "must be delete, compact"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_config(values)


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


def test_the_default_listener_is_loopback() -> None:
    assert BrokerConfig().listeners.host == "127.0.0.1"
