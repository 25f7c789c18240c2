"""DescribeConfigs and ListConfigResources: types, documentation, and which resources have settings at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.catalog import describe_topic
from broker.config.settings import LogConfig
from broker.protocol.api import ApiKey
from tests.support.admin import BROKER, TOPIC, describe
from tests.support.engine import Harness
from tests.support.setting_names import setting_names


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.create("clicks")
    yield harness
    harness.close()


def test_every_setting_is_shown_and_explained(broker: Harness) -> None:
    node = describe(broker, BROKER, "0").configs
    assert sorted(one.name for one in node) == setting_names()
    for one in [*node, *describe(broker, TOPIC, "clicks").configs]:
        assert one.documentation, f"{one.name} has no text in broker/config/texts.py"
        assert one.synonyms[-1].source == 5, "every setting has a default"


def test_types_are_kafkas(broker: Harness) -> None:
    found = {one.name: one.config_type for one in describe(broker, BROKER, "0").configs}
    boolean, string, integer, long, listed = 1, 2, 3, 5, 7
    assert found["auto.create.topics.enable"] == boolean
    assert found["compression.type"] == string
    assert found["log.segment.bytes"] == integer
    assert found["log.retention.ms"] == long
    assert found["log.cleanup.policy"] == listed


def test_only_what_was_asked_for_is_given(broker: Harness) -> None:
    (one,) = describe(broker, TOPIC, "clicks", "segment.bytes", "no.such.setting").configs
    assert (one.name, one.value, one.config_source) == ("segment.bytes", "1073741824", 5)
    assert describe(broker, TOPIC, "absent").error_code == 3


def test_a_value_that_this_release_cannot_use_is_shown_as_it_is_stored() -> None:
    found = {one.name: one.value for one in describe_topic(LogConfig(), (), {"retention.ms": "soon", "preallocate": "TRUE"})}
    assert (found["retention.ms"], found["preallocate"]) == ("soon", "true")


def test_a_version_without_types_and_texts_is_answered_without_them(broker: Harness) -> None:
    (one,) = describe(broker, TOPIC, "clicks", "segment.bytes", version=1).configs
    assert (one.value, one.config_source, len(one.synonyms)) == ("1073741824", 5, 1)


def test_resources_with_settings_are_listed(broker: Harness) -> None:
    every = broker.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[]).config_resources
    assert [(one.resource_type, one.resource_name) for one in every] == [(TOPIC, "clicks"), (BROKER, "0")]
    topics = broker.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[TOPIC]).config_resources
    assert [one.resource_name for one in topics] == ["clicks"]
    assert broker.ask(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources == []
