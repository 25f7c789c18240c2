"""Settings changed on a running broker: what is accepted, what is refused and why, what applies at once and after a restart.

DescribeConfigs and ListConfigResources: types, documentation, and which resources have settings at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from logbus_broker.errors import StartupError
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.settings import LogConfig
from logbus_broker.settings_catalog import describe_topic

from tests.support.admin import APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, alter, describe, replace_all, setting
from tests.support.engine import Harness
from tests.support.setting_names import setting_names


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("clicks", 2, retention_ms="5000")
    return harness


def log_config(broker: Harness, index: int = 0) -> LogConfig:
    return broker.engine.partitions.get("clicks", index).log.config


def test_a_topics_setting_holds_for_its_open_logs_at_once_and_after_a_restart(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks", 2)
    assert alter(broker, TOPIC, "clicks", ("retention.ms", SET, "1000"), ("max.message.bytes", SET, "2000")) == (0, None)
    assert [log_config(broker, index).retention_ms for index in (0, 1)] == [1000, 1000]
    broker.close()
    again = Harness(tmp_path)
    assert (log_config(again).retention_ms, log_config(again).message_bytes_max) == (1000, 2000)


def test_an_incremental_change_leaves_the_rest_and_a_whole_one_does_not(broker: Harness) -> None:
    alter(broker, TOPIC, "clicks", ("segment.bytes", SET, "4096"))
    assert (log_config(broker).retention_ms, log_config(broker).segment_bytes) == (5000, 4096)
    assert replace_all(broker, TOPIC, "clicks", segment_ms="60000") == (0, None)
    assert broker.engine.partitions.registry.get("clicks").overrides == {"segment.ms": "60000"}
    assert log_config(broker).retention_ms == LogConfig().retention_ms


def test_a_deleted_setting_goes_back_to_the_one_below_it(broker: Harness) -> None:
    assert alter(broker, TOPIC, "clicks", ("retention.ms", DELETE, None)) == (0, None)
    assert setting(broker, TOPIC, "clicks", "retention.ms").config_source == 5
    assert log_config(broker).retention_ms == LogConfig().retention_ms


def test_a_list_is_appended_to_and_subtracted_from(broker: Harness) -> None:
    overrides = lambda: broker.engine.partitions.registry.get("clicks").overrides  # noqa: E731
    assert alter(broker, TOPIC, "clicks", ("cleanup.policy", APPEND, "compact,delete")) == (0, None)
    assert overrides()["cleanup.policy"] == "delete,compact"  # the default is what is appended to
    assert log_config(broker).is_compacted
    assert alter(broker, TOPIC, "clicks", ("cleanup.policy", SUBTRACT, "compact")) == (0, None)
    assert overrides()["cleanup.policy"] == "delete"
    code, text = alter(broker, TOPIC, "clicks", ("cleanup.policy", SUBTRACT, "delete"))
    assert (code, "cleanup.policy" in (text or "")) == (40, True)  # the list would be empty
    assert alter(broker, TOPIC, "clicks", ("cleanup.policy", SET, " compact , delete ")) == (0, None)
    assert alter(broker, TOPIC, "clicks", ("cleanup.policy", APPEND, " delete")) == (0, None)
    assert alter(broker, TOPIC, "clicks", ("cleanup.policy", SUBTRACT, "delete ")) == (0, None)
    assert overrides()["cleanup.policy"] == "compact"
    code, text = alter(broker, TOPIC, "clicks", ("retention.ms", APPEND, "1"))
    assert (code, text) == (40, "retention.ms is not a list: set it instead of appending to it or subtracting from it")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("preallocate", " TRUE", "true"),
        ("retention.ms", " 007 ", "7"),
        ("min.cleanable.dirty.ratio", " .50", "0.5"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "delete,compact", "delete,compact"),
        ("message.timestamp.type", " LogAppendTime ", "LogAppendTime"),
        # What means nothing here is accepted and shown; Connect and kafka-reassign-partitions set some of it.
        ("compression.type", "lz4", "lz4"),
        ("min.insync.replicas", "2", "2"),
        ("remote.storage.enable", "false", "false"),
        ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("follower.replication.throttled.replicas", "", ""),
    ],
)
def test_a_value_is_shown_as_kafka_shows_it(broker: Harness, name: str, value: str, shown: str) -> None:
    assert alter(broker, TOPIC, "clicks", (name, SET, value)) == (0, None)
    described = setting(broker, TOPIC, "clicks", name)
    assert (described.value, described.synonyms[0].value, described.config_source) == (shown, shown, 1)


@pytest.mark.parametrize(
    ("name", "operation", "value", "code", "says"),
    [
        ("retention.seconds", SET, "1", 40, "did you mean 'retention.ms'?"),
        ("nothing.like.it", SET, "1", 40, "known: "),
        ("retention.ms", SET, "soon", 40, "must be a whole number"),
        ("retention.ms", SET, "-2", 40, "must be between -1 and"),
        ("cleanup.policy", SET, "shred", 40, "must be"),
        ("compression.type", SET, "LZ4", 40, "must be"),
        ("remote.storage.enable", SET, "true", 40, "there are no tiers"),
        ("leader.replication.throttled.replicas", SET, "0", 40, "must be PARTITION:BROKER"),
        ("leader.replication.throttled.rate", SET, "1", 40, "unknown topic configuration"),
        ("retention.ms", SET, None, 42, "has no value"),
        ("retention.ms", 9, "1", 42, "unknown operation"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    broker: Harness, name: str, operation: int, value: str | None, code: int, says: str
) -> None:
    refused, text = alter(broker, TOPIC, "clicks", (name, operation, value))
    assert refused == code
    assert says in (text or "")
    assert broker.engine.partitions.registry.get("clicks").overrides == {"retention.ms": "5000"}


def test_a_resource_is_changed_as_a_whole_or_not_at_all(broker: Harness) -> None:
    assert alter(broker, TOPIC, "clicks", ("segment.bytes", SET, "4096"), ("retention.ms", SET, "soon"))[0] == 40
    assert log_config(broker).segment_bytes == LogConfig().segment_bytes
    assert alter(broker, TOPIC, "clicks", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))[0] == 42
    assert alter(broker, TOPIC, "absent", ("retention.ms", SET, "1"))[0] == 3
    assert alter(broker, 8, "0", ("root", SET, "DEBUG"))[0] == 42


def test_a_resource_that_is_named_twice_is_not_changed_at_all(broker: Harness) -> None:
    row = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    asked = [
        row(
            resource_type=TOPIC,
            resource_name="clicks",
            configs=[row.AlterableConfig(name="retention.ms", config_operation=SET, value=value)],
        )
        for value in "12"
    ]
    answer = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=False)
    assert [one.error_code for one in answer.responses] == [42, 42]
    assert log_config(broker).retention_ms == 5000


def test_more_settings_than_there_are_cannot_be_changed_at_once(broker: Harness) -> None:
    """They are checked in one step: twenty thousand held the loop for a sixth of a second."""
    made_up = [(f"retention.ms{number}", SET, "1") for number in range(500)]
    assert alter(broker, TOPIC, "clicks", *made_up)[0] == 40
    for kind, name in ((TOPIC, "clicks"), (BROKER, "0")):
        code, text = alter(broker, kind, name, *made_up, ("retention.ms", SET, "7"))
        assert (code, text) == (42, f"501 settings of {name!r} at once: at most 500")
    assert log_config(broker).retention_ms == 5000


def test_validate_only_says_what_would_happen_and_changes_nothing(broker: Harness) -> None:
    assert alter(broker, TOPIC, "clicks", ("retention.ms", SET, "7"), validate_only=True) == (0, None)
    assert alter(broker, TOPIC, "clicks", ("retention.ms", SET, "x"), validate_only=True)[0] == 40
    assert alter(broker, BROKER, "0", ("log.retention.ms", SET, "7"), validate_only=True) == (0, None)
    assert log_config(broker).retention_ms == 5000
    assert setting(broker, BROKER, "0", "log.retention.ms").config_source == 5


def test_a_broker_setting_holds_below_the_topics_own_at_once_and_after_a_restart(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks", 1, retention_ms="5000")
    broker.create("views")
    every = (("log.retention.ms", SET, "1"), ("message.max.bytes", SET, "1000"), ("leader.replication.throttled.rate", SET, "9"))
    assert alter(broker, BROKER, "", *every) == (0, None)
    assert alter(broker, BROKER, "0", ("log.retention.ms", SET, "2")) == (0, None)
    views = broker.engine.partitions.get("views", 0).log
    assert (views.config.retention_ms, views.config.message_bytes_max, log_config(broker).retention_ms) == (2, 1000, 5000)
    broker.close()
    again = Harness(tmp_path)
    assert again.engine.partitions.get("views", 0).log.config.retention_ms == 2
    again.create("sales")
    assert again.engine.partitions.get("sales", 0).log.config.message_bytes_max == 1000
    assert alter(again, BROKER, "0", ("log.retention.ms", DELETE, None), ("max.connections.per.ip", SET, "7")) == (0, None)
    assert again.engine.partitions.settings.current.connections_per_ip_max == 7
    assert again.engine.partitions.get("views", 0).log.config.retention_ms == 1


@pytest.mark.parametrize(
    ("broker_name", "name", "code", "says"),
    [
        ("0", "num.partitions", 40, "restart"),
        ("", "retention.ms", 40, "did you mean 'log.retention.ms'?"),
        ("7", "log.retention.ms", 42, "this is broker 0"),
    ],
)
def test_a_broker_setting_that_cannot_change_says_why(broker: Harness, broker_name: str, name: str, code: int, says: str) -> None:
    refused, text = alter(broker, BROKER, broker_name, (name, SET, "1"))
    assert refused == code
    assert says in (text or "")


def test_every_layer_shows_as_a_synonym_the_strongest_first(tmp_path: Path) -> None:
    broker = Harness(tmp_path, log=LogConfig(retention_ms=30))
    broker.create("clicks", 1, retention_ms="10")
    alter(broker, BROKER, "", ("log.retention.ms", SET, "21"))
    alter(broker, BROKER, "0", ("log.retention.ms", SET, "20"))
    found = setting(broker, TOPIC, "clicks", "retention.ms")
    assert [(one.name, one.value, one.source) for one in found.synonyms] == [
        ("retention.ms", "10", 1),
        ("log.retention.ms", "20", 2),
        ("log.retention.ms", "21", 3),
        ("log.retention.ms", "30", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (found.value, found.config_source, found.read_only, found.config_type) == ("10", 1, False, 5)
    own = setting(broker, BROKER, "0", "log.retention.ms")
    assert (own.value, own.config_source, own.read_only, len(own.synonyms)) == ("20", 2, False, 4)
    assert [(one.name, one.value, one.config_source) for one in describe(broker, BROKER, "").configs] == [
        ("log.retention.ms", "21", 3)
    ]
    assert describe(broker, BROKER, "7").error_code == 42


@pytest.mark.parametrize(
    ("file", "stored"),
    [
        ("broker-configs.json", {"broker": {"log.retention.ms": "soon"}, "default": {}}),
        (
            "topics.json",
            {"version": 1, "topics": [{"name": "t", "id": str(UUID(int=1)), "partitions": 1, "configs": {"x": "1"}}]},
        ),
    ],
)
def test_a_stored_setting_that_this_release_refuses_stops_the_start_by_name(tmp_path: Path, file: str, stored: object) -> None:
    Harness(tmp_path).close()
    (tmp_path / file).write_text(json.dumps(stored))
    with pytest.raises(StartupError, match=f"{file}.*remove the entry"):
        Harness(tmp_path)


@pytest.fixture
def described(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("clicks")
    return harness


def test_every_setting_is_shown_and_explained(described: Harness) -> None:
    node = describe(described, BROKER, "0").configs
    assert sorted(one.name for one in node) == setting_names()
    for one in [*node, *describe(described, TOPIC, "clicks").configs]:
        assert one.documentation, f"{one.name} has no text in broker/logbus_broker/settings_catalog.py"
        assert one.synonyms[-1].source == 5, "every setting has a default"


def test_types_are_kafkas(described: Harness) -> None:
    found = {one.name: one.config_type for one in describe(described, BROKER, "0").configs}
    boolean, string, integer, long, listed = 1, 2, 3, 5, 7
    assert found["auto.create.topics.enable"] == boolean
    assert found["compression.type"] == string
    assert found["log.segment.bytes"] == integer
    assert found["log.retention.ms"] == long
    assert found["log.cleanup.policy"] == listed


def test_only_what_was_asked_for_is_given(described: Harness) -> None:
    (one,) = describe(described, TOPIC, "clicks", "segment.bytes", "no.such.setting").configs
    assert (one.name, one.value, one.config_source) == ("segment.bytes", "1073741824", 5)
    assert describe(described, TOPIC, "absent").error_code == 3


def test_a_value_that_this_release_cannot_use_is_shown_as_it_is_stored() -> None:
    found = {one.name: one.value for one in describe_topic(LogConfig(), (), {"retention.ms": "soon", "preallocate": "TRUE"})}
    assert (found["retention.ms"], found["preallocate"]) == ("soon", "true")


def test_a_version_without_types_and_texts_is_answered_without_them(described: Harness) -> None:
    (one,) = describe(described, TOPIC, "clicks", "segment.bytes", version=1).configs
    assert (one.value, one.config_source, len(one.synonyms)) == ("1073741824", 5, 1)


def test_resources_with_settings_are_listed(described: Harness) -> None:
    every = described.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[]).config_resources
    assert [(one.resource_type, one.resource_name) for one in every] == [(TOPIC, "clicks"), (BROKER, "0")]
    topics = described.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[TOPIC]).config_resources
    assert [one.resource_name for one in topics] == ["clicks"]
    assert described.ask(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources == []
